"""`scanrnn.scan`: the signature of lax.scan, its corner cases, and clear errors."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn import _plans
from scanrnn.executors import _xla
from tests.jaxprs import equations
from tests.step_table import STEPS, build


def elman():
    step, params, init, xs = build("elman")
    return functools.partial(step, params), init, xs


def test_scan_signature_begins_with_that_of_lax_scan():
    ours = list(inspect.signature(scanrnn.scan).parameters.values())
    theirs = list(inspect.signature(lax.scan).parameters.values())
    assert [(p.name, p.default) for p in ours[: len(theirs)]] == [
        (p.name, p.default) for p in theirs
    ]
    assert [p.name for p in ours[len(theirs) :]] == ["plan", "implementation"]


@pytest.mark.parametrize("name", ["lstm", "with_prng", "without_ys"])
def test_scan_over_no_steps_equals_lax_scan(name):
    step, params, init, xs = build(name)
    xs = jax.tree.map(lambda x: x[:0], xs)
    got = scanrnn.scan(functools.partial(step, params), init, xs)
    wanted = lax.scan(functools.partial(step, params), init, xs)
    assert str(jax.tree.map(jax.typeof, got)) == str(jax.tree.map(jax.typeof, wanted))


@pytest.mark.parametrize("name", STEPS)
def test_result_has_the_types_of_lax_scan(name):
    step, params, init, xs = build(name)
    f, length = functools.partial(step, params), 5
    got, wanted = (
        jax.eval_shape(lambda i, x, s=s: s(f, i, x, length=length), init, xs)
        for s in (scanrnn.scan, lax.scan)
    )
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)


def test_side_effects_keep_their_order(capfd):
    u = jnp.eye(2)

    def step(h, x):
        jax.debug.print("step {x}", x=x, ordered=True)
        return h @ u, None

    scanrnn.scan(step, jnp.ones((1, 2)), jnp.arange(3))
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == "step 0 step 1 step 2".split()
    assert "side effects" in str(scanrnn.plan(step, jnp.ones((1, 2)), jnp.arange(3)))


def test_implementation_by_name_is_that_one_or_an_error():
    f, init, xs = elman()
    _, wanted = scanrnn.scan(f, init, xs, implementation="scan")
    _, got = scanrnn.scan(f, init, xs, implementation="planned")
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    with pytest.raises(ValueError, match="one of planned, scan, .*; got 'cudnn'"):
        scanrnn.scan(f, init, xs, implementation="cudnn")
    with pytest.raises(ValueError, match="nothing in the step can be moved"):
        scanrnn.scan(lambda h, x: (h + x, h), init, xs, implementation="planned")


def test_plan_can_be_passed_back():
    f, init, xs = elman()
    plan = scanrnn.plan(f, init, xs, residuals="recompute")
    _, got = scanrnn.scan(f, init, xs, plan=plan)
    np.testing.assert_allclose(got, lax.scan(f, init, xs)[1], rtol=1e-12)


def test_plan_of_other_shapes_is_refused():
    f, init, xs = elman()
    plan = scanrnn.plan(f, init, xs)
    with pytest.raises(ValueError, match="plan was made for other arguments"):
        scanrnn.scan(f, init, xs[:3], plan=plan)


def test_same_step_and_options_give_the_same_plan():
    f, init, xs = elman()
    assert scanrnn.plan(f, init, xs) is scanrnn.plan(f, init, xs)
    assert scanrnn.plan(f, init, xs) is not scanrnn.plan(f, init, xs, merge=False)


def test_plans_of_many_lengths_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(_plans, "_MOST_PLANS", 2)
    plans = {}

    def step(h, x):
        return jnp.tanh(h + x), h

    monkeypatch.setattr(_plans, "_of_steps", plans)
    for length in (5, 6, 7):
        scanrnn.plan(step, jnp.ones(3), jnp.ones((length, 3)))
    (kept,) = plans.values()
    assert [length for length, *_ in kept.plans] == [6, 7]


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint])
def test_calls_around_a_step_do_not_change_what_runs_it(wrap):
    """The estimate counts what is in the call: else `lax.scan` seemed to keep less."""
    cell = scanrnn.cells.lstm()
    params = cell.init(jax.random.key(0), 512, 512)
    xs = jax.ShapeDtypeStruct((30, 32, 512), jnp.float32)
    carry = jax.eval_shape(lambda xs: cell.initial_carry(params, xs[0]), xs)
    step = functools.partial(cell.step, params)
    plain, wrapped = (
        scanrnn.plan(f, carry, xs, machine="cpu") for f in (step, wrap(step))
    )
    assert plain.executor.name == wrapped.executor.name == "planned"


def test_plan_takes_abstract_arguments():
    f, init, xs = elman()
    shapes = jax.eval_shape(lambda i, x: (i, x), init, xs)
    assert str(scanrnn.plan(f, *shapes)) == str(scanrnn.plan(f, init, xs))


BAD = {
    "carry shape": (
        lambda f, i, x: scanrnn.scan(lambda h, x: (h[:, :1], x), i, x),
        TypeError,
        r"init is float64\[3,4\], f returned float64\[3,1\]",
    ),
    "carry dtype": (
        lambda f, i, x: scanrnn.scan(
            lambda c, x: ({"h": c["h"].astype("float16")}, x), {"h": i}, x
        ),
        TypeError,
        r"init\['h'\] is float64\[3,4\], f returned float16\[3,4\]",
    ),
    "carry structure": (
        lambda f, i, x: scanrnn.scan(lambda h, x: ((h, h), x), i, x),
        TypeError,
        "carry of the structure of init",
    ),
    "not a pair": (
        lambda f, i, x: scanrnn.scan(lambda h, x: h, i, x),
        TypeError,
        r"pair \(carry, y\), got one array, float64\[3, 4\]; return \(carry, None\)",
    ),
    "three values": (
        lambda f, i, x: scanrnn.scan(lambda h, x: (h, x, x), i, x),
        TypeError,
        r"pair \(carry, y\), got 3 values; return \(carry, None\)",
    ),
    "not callable": (
        lambda f, i, x: scanrnn.scan(None, i, x),
        TypeError,
        "f must be callable, got NoneType",
    ),
    "leading sizes": (
        lambda f, i, x: scanrnn.scan(f, i, {"a": x, "b": x[:2]}),
        ValueError,
        r"xs\['a'\] has 5, xs\['b'\] has 2",
    ),
    "length": (
        lambda f, i, x: scanrnn.scan(f, i, x, length=3),
        ValueError,
        "xs has 5, length is 3",
    ),
    "no length": (
        lambda f, i, x: scanrnn.scan(f, i),
        ValueError,
        "xs=None, length must be given",
    ),
    "scalar xs": (
        lambda f, i, x: scanrnn.scan(f, i, 1.0),
        ValueError,
        "xs is a scalar",
    ),
    "text xs": (
        lambda f, i, x: scanrnn.scan(f, i, "text"),
        TypeError,
        "must be an array or a number, got str",
    ),
    "unroll": (
        lambda f, i, x: scanrnn.scan(f, i, x, unroll=-1),
        ValueError,
        "unroll must be a bool or at least 0; got -1",
    ),
    "plan type": (
        lambda f, i, x: scanrnn.scan(f, i, x, plan="fast"),
        TypeError,
        r"scanrnn.Options\(...\)",
    ),
    "policy": (
        lambda f, i, x: scanrnn.plan(f, i, x, residuals="none"),
        ValueError,
        "minimal, recompute, chunked, everything; got 'none'",
    ),
    "option": (
        lambda f, i, x: scanrnn.plan(f, i, x, speed=11),
        TypeError,
        "there is no option 'speed'; options are split, hoist",
    ),
    "chunk": (
        lambda f, i, x: scanrnn.plan(f, i, x, chunk=0),
        ValueError,
        "chunk must be None or a number of steps; got 0",
    ),
    "option type": (
        lambda f, i, x: scanrnn.plan(f, i, x, hoist="yes"),
        TypeError,
        "hoist must be a bool, got 'yes'",
    ),
    "orientation": (
        lambda f, i, x: scanrnn.plan(f, i, x, features_first="yes"),
        TypeError,
        "features_first must be None or a bool, got 'yes'",
    ),
}


@pytest.mark.parametrize("call, error, message", BAD.values(), ids=BAD)
def test_bad_argument_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(*elman())


def test_plan_in_chunks_counts_its_contractions_per_chunk():
    f, init, xs = elman()
    plan = scanrnn.plan(f, init, xs, chunk=2)
    assert "5 steps in chunks of 2" in str(plan)
    forward = {row.path: row for row in plan.gemms if row.phase == "forward"}
    assert forward["layer-to-layer"][2:6] == (4, 6, 4, 3)
    assert forward["recurrent"][2:6] == (4, 3, 4, 5)


def test_long_sequence_is_not_hoisted_at_once():
    """A million steps of one number would need 1 GB of pre-activations for 4 MB."""
    W, U = jnp.ones((1, 256)), jnp.ones((256, 256))

    def step(h, x):
        return jnp.tanh(x @ W + h @ U), None

    init, xs = jax.eval_shape(lambda: (jnp.zeros((1, 256)), jnp.zeros((10**6, 1, 1))))
    plan = scanrnn.plan(step, init, xs)
    assert plan.chunk * 256 * 8 <= 2**28 < 2 * plan.chunk * 256 * 8
    assert "(at once it would take 2.048 GB" in str(plan)


def test_large_readouts_are_not_computed_at_once():
    """A step makes logits of a large vocabulary, and returns one number."""
    W, U, E = (jnp.ones(s) for s in ((4, 8), (8, 8), (8, 50_000)))

    def step(h, x):
        h = jnp.tanh(x @ W + h @ U)
        return h, jax.nn.logsumexp(h @ E)

    def of_batch(B):
        init, xs = jnp.zeros([B, 8]), jnp.zeros([4096, B, 4])
        return scanrnn.plan(step, *jax.eval_shape(lambda: (init, xs)))

    chunk = of_batch(4).chunk
    assert chunk * 4 * 50_000 * 8 <= 2**28 < 2 * chunk * 4 * 50_000 * 8
    # If the logits are larger than the matrix, each step makes its own.
    assert not of_batch(32).stages.after.eqns


def test_checkpointed_step_keeps_carries_at_chunk_starts_only():
    f, init, xs = elman()
    step = jax.checkpoint(f)
    plan = scanrnn.plan(step, init, xs)
    assert (plan.residuals, plan.chunk) == ("chunked", 2)
    assert "chunked, for jax.checkpoint" in str(plan)
    # A checkpoint of a part of the step, or inside another function, is enough.
    part = scanrnn.plan(jax.jit(lambda c, x: jax.checkpoint(f)(c, x)), init, xs)
    assert part.residuals == "chunked"
    asked = scanrnn.plan(step, init, xs, residuals="minimal")
    assert (asked.residuals, asked.chunk) == ("minimal", None)


def test_planned_scan_in_a_step_is_no_checkpoint_of_the_author():
    f, init, xs = elman()

    def layer(total, x):
        return total + scanrnn.scan(f, init, x)[0], None

    many = jnp.stack([xs, xs])
    assert scanrnn.plan(layer, init, many).residuals == "minimal"


@pytest.mark.parametrize("layout", [True, False])
@pytest.mark.parametrize("name", ["lstm", "mi_lstm"])
def test_layout_reads_every_gate_from_where_the_sequence_lies(name, layout):
    """One hoisted array has all gates. The loop does not slice a slice of it."""
    step, params, init, xs = build(name)
    plan = scanrnn.plan(functools.partial(step, params), init, xs, layout=layout)
    assert [v.aval.shape for v in plan.stages.hoisted] == [(3, 16)]
    run = functools.partial(scanrnn.scan, functools.partial(step, params), plan=plan)
    read = [
        e.outvars[0].aval.shape
        for e in equations(jax.make_jaxpr(run)(init, xs).jaxpr)
        if e.primitive.name == "dynamic_slice"
    ]
    assert read == ([(1, 3, 4)] * 4 if layout else [])


def test_step_too_small_to_gain_is_left_to_lax_scan(monkeypatch):
    rules = dataclasses.replace(_xla.CPU, least_work=4096)
    monkeypatch.setattr(_xla, "CPU", rules)
    step, params, init, xs = build("lstm")
    f = functools.partial(step, params)
    assert "lax.scan unchanged: a step is only" in str(scanrnn.plan(f, init, xs))
    assert scanrnn.plan(f, init, xs, implementation="planned").reason is None
    insisting = functools.partial(scanrnn.scan, f, implementation="planned")
    carry, ys = jax.lax.scan(f, init, xs)
    jax.tree.map(np.testing.assert_allclose, insisting(init, xs), (carry, ys))
    rows = functools.partial(jnp.repeat, repeats=100, axis=-2)
    assert scanrnn.plan(f, *jax.tree.map(rows, (init, xs))).reason is None


@pytest.mark.parametrize("batch, runs", [(1, "scan"), (2, "planned")])
def test_step_with_products_of_one_row_has_a_bound_of_its_own(monkeypatch, batch, runs):
    rules = dataclasses.replace(_xla.CPU, least_work=128, least_row_work=4096)
    monkeypatch.setattr(_xla, "CPU", rules)

    def step(h, x):
        h = jnp.tanh(x @ kernel + h @ kernel)
        return h, h

    kernel = jnp.eye(16)
    xs = jnp.ones((64, batch, 16))
    assert scanrnn.plan(step, xs[0], xs).executor.name == runs


def test_plan_says_what_its_cost_rules_chose():
    step, params, init, xs = build("mi_lstm")
    plan = scanrnn.plan(functools.partial(step, params), init, xs)
    text = plan.describe(long=True)
    assert "Hoisted all steps at once: " in text
    assert "up to 268.4 MB go at once" in text
    assert "Read in pieces in the loop: float64[3,16]" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"machine": "h100"}, "64 steps at a time: 1.049 MB in all; up to 64 steps"),
        ({"machine": "tpu v5e"}, "all steps at once: 1.049 MB in all; up to 256 steps"),
        ({"machine": "h100", "residuals": "minimal"}, "in all; up to 1.074 GB go at"),
        ({"chunk": 32}, "32 steps at a time: 1.049 MB in all; chunks as asked for"),
        ({"residuals": "chunked"}, "16 steps at a time: 1.049 MB in all; chunks that"),
    ],
)
def test_plan_says_by_which_rule_it_is_cut(options, text):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ W + h @ W, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    W, zeros = jnp.ones((32, 128), "float32"), jnp.zeros((8, 32), "float32")
    xs = jax.ShapeDtypeStruct((256, 8, 32), "float32")
    plan = scanrnn.plan(step, (zeros, zeros), xs, **options)
    assert text in plan.describe(long=True)


def test_plan_names_what_keeps_a_product_of_inputs_in_the_loop():
    W = jnp.full((64, 64), 0.01)

    def step(h, x):
        read = jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        h = jnp.tanh(h @ W + read @ W + x @ W)
        return h, h

    text = str(scanrnn.plan(step, jnp.ones((16, 64)), jnp.ones((9, 16, 64))))
    assert "dot_general (it reads pure_callback, which cannot be batched" in text


def test_plan_names_a_planned_scan_in_its_step():
    W = jnp.full((64, 64), 0.01)

    def inner(h, _):
        return jnp.tanh(h @ W), None

    def step(h, x):
        h, _ = scanrnn.scan(inner, jnp.tanh(h @ W + x @ W), None, length=3)
        return h, h

    shapes = jnp.ones((16, 64)), jnp.ones((9, 16, 64))
    text = str(scanrnn.plan(step, *shapes, implementation="planned"))
    assert "Left in the loop: a planned scan" in text


def test_plan_says_what_stayed_in_the_loop_and_why():
    step, params, init, xs = build("with_cond")
    cpu, h100 = (
        str(scanrnn.plan(functools.partial(step, params), init, xs, machine=name))
        for name in ("cpu", "h100")
    )
    for text in (cpu, h100):
        assert "Left in the loop: cond (batched over time it would run both" in text
    assert "Gradients summed in the reverse loop" in h100
    assert "stay in the reverse loop: jax.custom_vjp, loops or branches with" in cpu
