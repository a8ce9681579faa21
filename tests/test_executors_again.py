"""Recompute results of contractions from carries, for a chunk of steps at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn.executors.run import ruled
from scanrnn.machines import MACHINES
from scanrnn.planner import emit
from scanrnn.planner.motion.around import around
from tests.compare import assert_same, training_jaxpr, value_and_gradients
from tests.jaxprs import gemms, loops
from tests.step_table import build

SLOW = pytest.mark.slow
NAMES = ["lstm", "ln_lstm", "gru", "gru_reset_before", "output_head", "with_prng"]


@functools.cache
def stretched(name):
    """A row of the table with six steps: chunks of two, or of four with a rest."""
    step, params, init, xs = build(name)
    six = jnp.arange(6) % len(jax.tree.leaves(xs)[0])
    return step, params, init, jax.tree.map(lambda x: x[six], xs)


CHUNKS = [("cpu", 2), ("cpu", 4), ("h100", 4), ("tpu v5e", 2)]
# Two rows have all chunks, and the others two of them each. Machines and directions go
# round, so that each chunk runs in both.
CASES = [
    pytest.param(name, *CHUNKS[k], bool((i + k // 2) % 2), marks=SLOW if i > 1 else ())
    for i, name in enumerate(NAMES)
    for k in range(len(CHUNKS))
    if i < 2 or (k + i) % 2
]


@pytest.mark.parametrize(("name", "machine", "chunk", "reverse"), CASES)
def test_chunks_made_again_equal_lax_scan(monkeypatch, name, machine, chunk, reverse):
    monkeypatch.setattr(ruled, "machine_for", lambda platform: MACHINES[machine])
    plan = scanrnn.Options(machine=machine, residuals="recompute", chunk=chunk)
    make = stretched(name)
    assert_same(make, value_and_gradients, plan=plan, reverse=reverse)


@pytest.mark.parametrize("name", ["nested_scan", "with_prng", "elman"])
def test_what_cannot_be_made_at_once_is_made_again_step_by_step(name):
    step, params, init, xs = build(name)
    f = functools.partial(step, params)
    plan = scanrnn.plan(f, init, xs, residuals="recompute")
    made = plan.derivative.recomputed
    assert all(e.primitive.name != "scan" for e in made.eqns)
    assert_same(build(name), value_and_gradients, plan=plan.options)


@pytest.mark.parametrize("name", ["lstm", "ln_lstm", "gru"])
def test_no_loop_repeats_the_products_of_a_step(name):
    options = scanrnn.Options(residuals="recompute", chunk=2)
    scan = functools.partial(scanrnn.scan, plan=options)
    bodies = [
        e.params["jaxpr"].jaxpr for e in loops(training_jaxpr(scan, stretched(name)))
    ]
    inner = [body for body in bodies if not loops(body)]
    assert [len(list(gemms(body))) for body in inner] == [1, 1]


@pytest.mark.parametrize(
    ("machine", "length", "policy", "chunk"),
    [
        ("cpu", 240, "minimal", None),
        ("h100", 240, "recompute", 60),
        ("h100", 30, "minimal", None),
        ("tpu v5e", 240, "recompute", None),
        ("tpu v5e", 2**21, "recompute", 2**15),
    ],
)
def test_machine_says_what_is_made_again(machine, length, policy, chunk):
    step, params, init, _ = build("lstm")
    xs = jax.ShapeDtypeStruct((length, 3, 4), float)
    found = scanrnn.plan(functools.partial(step, params), init, xs, machine=machine)
    assert (found.residuals, found.chunk) == (policy, chunk)


def test_plan_says_what_its_machine_makes_again():
    step, params, init, xs = stretched("lstm")
    f = functools.partial(step, params)
    text = scanrnn.plan(f, init, xs, machine="tpu v5e").describe(long=True)
    assert "Kept for the reverse loop (recompute, chosen for tpu v5e)" in text
    assert "Recomputed, for all steps at once" in text


def test_cotangents_are_written_over_gates_that_were_made_again(monkeypatch):
    found, overwritten = [], emit._overwritten

    def spy(loop, *args):
        over = overwritten(loop, *args)
        found.extend(v in loop.recomputed.ys for v in over.values())
        return over

    monkeypatch.setattr(emit, "_overwritten", spy)
    plan = scanrnn.Options(machine="h100", residuals="recompute", chunk=2)
    scan = functools.partial(scanrnn.scan, plan=plan)
    training_jaxpr(scan, stretched("lstm"))
    assert found and all(found)


def test_products_made_again_are_counted():
    step, params, init, xs = stretched("lstm")
    f = functools.partial(step, params)
    plan = scanrnn.plan(f, init, xs, machine="tpu v5e", chunk=2)
    again = [row for row in plan.gemms if row.where == "recomputed"]
    assert [(row.path, row.phase) for row in again] == [
        ("layer-to-layer", "forward"),
        ("recurrent", "forward"),
    ]
    assert {(row.count, row.N) for row in again} == {(3, 2 * 3)}
    plain = scanrnn.plan(f, init, xs, machine="tpu v5e", residuals="minimal")
    assert all(row.where != "recomputed" for row in plain.gemms)


def test_reverse_step_on_a_tpu_is_rid_of_what_is_done_for_many_at_once():
    step, params, init, xs = build("lstm")
    plan = scanrnn.plan(functools.partial(step, params), init, xs, machine="tpu v5e")
    rules = plan.derivative
    steps = plan.loop.steps
    inside = steps.inside(frozenset({*rules.graph.carry, *rules.cuts}))
    graph = steps.reverse(inside, inside.ys).graph
    before, left, after = around(graph, pays=True)
    bits = left.depends
    assert {e.primitive.name for e in before.eqns} >= {"mul", "sub"}
    assert [e.primitive.name for e in after.eqns] == ["concatenate"]
    assert all(bits[e] & 2 for e in left.eqns)
    # The joined array is also an operand of a product.
    assert len(left.eqns) == len(graph.eqns) - len(before.eqns)
    assert [v.aval.shape for v in left.ys] == [(3, 4)] * 4
    before, left, after = around(graph, pays=False)
    assert not before.eqns and not after.eqns
    assert left.eqns == graph.eqns


def test_gradients_of_halves_are_summed_over_chunks_in_float32():
    """A weight in bfloat16 makes nearly the same contribution in each of many steps."""
    T, H = 512, 4
    half = jnp.bfloat16
    params = {"W": jnp.full((H, H), 0.01, half), "b": jnp.zeros(H, half)}
    xs, init = jnp.ones((T, 2, H), jnp.bfloat16), jnp.zeros((2, H), jnp.bfloat16)

    def loss(params, **options):
        def step(h, x):
            return jnp.tanh(x @ params["W"] + params["b"]), h

        carry, ys = scanrnn.scan(step, init, xs, plan=scanrnn.Options(**options))
        return (carry.sum() + ys.astype("float32").sum()).astype("float32")

    whole = jax.grad(loss)(params, residuals="minimal")
    chunks = jax.grad(loss)(params, residuals="recompute", chunk=4)
    for name in params:
        np.testing.assert_allclose(
            np.asarray(chunks[name], float), np.asarray(whole[name], float), rtol=0.01
        )


@jax.custom_jvp
def reversed_gradient(x):
    return x * 1.0


@reversed_gradient.defjvp
def _(primals, tangents):
    return primals[0] * 1.0, -tangents[0]


@pytest.mark.parametrize("machine", ["cpu", "tpu v5e"])
def test_second_derivative_sees_a_rule_once(machine):
    """The rule is for the first derivative. Recomputing must not apply it again."""
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"W": (3, 4), "U": (4, 4), "V": (4, 4)}
    pairs = zip(keys[:3], shapes.items(), strict=True)
    weights = {name: jax.random.normal(key, shape) for key, (name, shape) in pairs}
    init, xs = jnp.full((2, 4), 0.3), jax.random.normal(keys[3], (6, 2, 3))
    plan = scanrnn.Options(machine=machine, residuals="recompute")

    def second(scan, **options):
        def loss(p):
            def step(c, x):
                q = reversed_gradient(c @ p["U"] + x @ p["W"])
                h = jnp.tanh(reversed_gradient(q @ p["V"]) @ p["U"].T)
                return h, h

            return jnp.sum(jnp.sin(scan(step, init, xs, **options)[1]))

        return jax.jit(lambda p: jax.jvp(jax.grad(loss), (p,), (p,)))(weights)

    wanted = jax.tree.leaves(second(jax.lax.scan))
    found = jax.tree.leaves(second(scanrnn.scan, plan=plan))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_loop_with_a_rule_of_the_author_runs_forward_once():
    options = scanrnn.Options(residuals="recompute", defer=False)
    scan = functools.partial(scanrnn.scan, plan=options)
    assert len(loops(training_jaxpr(scan, build("lstm")))) == 2
