"""Without a gradient, a sequence runs in chunks: equal values under all transforms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from scanrnn.machines import MACHINES
from scanrnn.planner import chunks
from scanrnn.planner.plan import Plan
from tests.compare import assert_same, outputs_alone, value_and_gradients
from tests.step_table import STEPS, T, build
from tests.tiers import one_in

# The fast memory is so small that every sequence is cut.
MACHINE = dataclasses.replace(MACHINES["cpu"], kind="small cache", fast_memory=1)
PLAN = scanrnn.Options(machine=MACHINE)
SOME = ("ln_lstm", "with_cond", "shift_register", "output_head")


@pytest.fixture(autouse=True)
def _two_steps_at_a_time(monkeypatch):
    """Two of five steps make a chunk, so one step is left over."""
    monkeypatch.setattr(Plan, "matrix_bytes", 0)
    monkeypatch.setattr(chunks, "_even", lambda length, most: 2)


def plan_of(name):
    step, params, init, xs = build(name)
    length = T if xs is None else None
    step = functools.partial(step, params)
    return scanrnn.plan(step, init, xs, length, machine=MACHINE)


def over_each_alone(loss, outputs):
    """`vmap` over one argument; the others are not mapped."""

    def run(x):
        found = []
        for i in range(len(x)):
            many = jnp.stack([x[i], 0.5 * x[i]])
            outs = jax.vmap(lambda a, i=i: outputs([*x[:i], a, *x[i + 1 :]]))(many)
            found.append(outs)
        return found

    return jax.jit(run)


def slopes_of_examples(loss, outputs):
    def run(x):
        many = [jnp.stack([leaf, 0.5 * leaf]) for leaf in x]
        value = functools.partial(jax.jvp, loss)
        return jax.vmap(lambda x: (outputs(x), value((x,), (x,)), jax.grad(loss)(x)))(
            many
        )

    return jax.jit(run)


def test_most_steps_with_something_to_hoist_are_cut():
    cut = [name for name in STEPS if plan_of(name).value_chunk == 2]
    assert {*SOME, "lstm", "gru", "mi_lstm"} <= {*cut}
    told = f"Loop for values: 2 steps in each of {T // 2} chunks;"
    assert told in str(plan_of("lstm"))


@pytest.mark.parametrize("name", one_in(3, STEPS))
def test_values_in_chunks_are_those_of_lax_scan(name):
    rtol = 1e-4 if name == "mixed_dtypes" else 1e-9
    assert_same(build(name), outputs_alone, plan=PLAN, rtol=rtol)


@pytest.mark.parametrize("name", SOME)
def test_values_in_chunks_in_reverse(name):
    assert_same(build(name), outputs_alone, plan=PLAN, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform", [value_and_gradients, over_each_alone, slopes_of_examples]
)
@pytest.mark.parametrize("name", SOME)
def test_values_in_chunks_under_transforms(name, transform):
    assert_same(build(name), transform, plan=PLAN)


def test_gradient_is_not_cut():
    step, params, init, xs = build("lstm")

    def loss(params, plan):
        step_ = functools.partial(step, params)
        return jnp.sum(scanrnn.scan(step_, init, xs, plan=plan)[1])

    whole = scanrnn.Options(machine=dataclasses.replace(MACHINE, fast_memory=2**30))
    texts = [
        jax.jit(jax.grad(loss), static_argnums=1).lower(params, plan).as_text()
        for plan in (PLAN, whole)
    ]
    assert texts[0] == texts[1]


def test_what_user_or_step_say_of_chunks_stays():
    step, params, init, xs = build("lstm")
    step = functools.partial(step, params)
    make = functools.partial(scanrnn.plan, init=init, xs=xs, machine=MACHINE)
    assert make(step, chunk=3).value_chunk is None
    assert make(step, unroll=True).value_chunk is None
    assert make(step, unroll=2).value_chunk == 2


def test_checkpoint_is_for_gradients_alone():
    step, params, init, xs = build("lstm")
    step = jax.checkpoint(functools.partial(step, params))
    plan = scanrnn.plan(step, init, xs, machine="cpu")
    assert (plan.chunk, plan.value_chunk) == (2, T)
    assert f"Loop for values: {T} steps;" in str(plan)
    run = jax.jit(functools.partial(scanrnn.scan, step))
    ours, wanted = run(init, xs), lax.scan(step, init, xs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        assert jnp.allclose(a, b, rtol=1e-9)


def test_long_sequence_takes_no_more_memory_than_a_short_one():
    W, U = jnp.full((8, 256), 0.1), jnp.full((64, 256), 0.1)

    def step(h, x):
        z = x @ W + h @ U
        h = jnp.tanh(sum(jnp.split(z, 4, axis=-1)))
        return h, jnp.sum(h)

    def temporaries(length):
        xs = jax.ShapeDtypeStruct((length, 4, 8), jnp.float64)
        run = jax.jit(lambda h, xs: scanrnn.scan(step, h, xs, plan=PLAN))
        compiled = run.lower(jnp.zeros((4, 64)), xs).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(2000) < temporaries(100) + 8 * 2000 * 16


def test_exported_program_gives_the_same_values():
    step, params, init, xs = build("lstm")

    def run(scan, xs):
        return scan(functools.partial(step, params), init, xs)[1]

    ours = jax.jit(functools.partial(run, functools.partial(scanrnn.scan, plan=PLAN)))
    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(ours, platforms=platforms)(xs)
    assert jnp.allclose(exported.call(xs), run(lax.scan, xs), rtol=1e-9)
