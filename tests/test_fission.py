"""One loop as several, one after the other: values, gradients, and what is split."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import scanrnn
from scanrnn.executors import EXECUTORS
from tests.compare import assert_same, outputs_of_gradients, value_and_gradients
from tests.generated import programs, stacked
from tests.test_planner_generated import examine
from tests.test_planner_transforms import forward_over_reverse

T, B, H = 5, 3, 4
SPLIT = scanrnn.Options(implementation="fission")
NAMES = "abcdefg"


def drawn(*shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [0.5 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]


def weights():
    return dict(zip(NAMES, drawn(*[(H, H)] * 6, (2 * H, H)), strict=True))


def two_layers(p, carry, x):
    h1, h2 = carry
    h1 = jnp.tanh(x @ p["a"] + h1 @ p["b"])
    h2 = jnp.tanh(jnp.concatenate([h1, h2], -1) @ p["g"])
    return (h1, h2), h2


def three_layers(p, carry, x):
    h1, h2, h3 = carry
    h1 = jnp.tanh(x @ p["a"] + h1 @ p["b"])
    h2 = jnp.tanh(jnp.concatenate([h1, h2], -1) @ p["g"])
    h3 = jnp.tanh(h2 @ p["c"] + h3 @ p["d"] + h1)
    return (h1, h2, h3), (h3 @ p["e"], h1, h1)


def in_a_jit(p, carry, x):
    return jax.jit(three_layers)(p, carry, x)


def counted(p, carry, x):
    h1, t, h2 = carry
    h1 = jnp.tanh(x @ p["a"] + h1 @ p["b"])
    h2 = jnp.tanh((h1 * (1 + t)) @ p["c"] + h2 @ p["d"])
    return (h1, t + 1, h2), {"y": h2, "t": t, "two": 2.0, "x": x}


def with_a_constant(p, carry, x):
    """A leaf that never changes, and a sum of outputs beside the second layer."""
    gain, h1, h2, total = carry
    new = jnp.tanh(x @ p["a"] + (h1 @ p["b"]) * gain)
    h2 = jnp.tanh(h1 @ p["c"] + h2 @ p["d"] + gain)
    return (gain, new, h2, total + h2.sum()), h2


def delayed(p, carry, x):
    h1, before, earlier, h2 = carry
    new = jnp.tanh(x @ p["a"] + h1 @ p["b"])
    h2 = jnp.tanh(earlier @ p["c"] + h2 @ p["d"])
    return (new, h1, before, h2), (h2, earlier)


def common_input(p, carry, x):
    h1, h2 = carry
    z = jnp.tanh(x @ p["a"])
    h1 = jnp.tanh(z + h1 @ p["b"])
    h2 = jnp.tanh((z * h1) @ p["c"] + h2 @ p["d"])
    return (h1, h2), h1 + h2


def noisy(p, carry, x):
    key, h1, h2 = carry
    key, draw = jax.random.split(key)
    h1 = jnp.tanh(x @ p["a"] + h1 @ p["b"])
    kept = jnp.where(jax.random.bernoulli(draw, 0.5, h1.shape), h1, 0)
    return (key, h1, h2 := jnp.tanh(kept @ p["c"] + h2 @ p["d"])), h2


def carries_as_outputs(p, carry, x):
    h1, h2 = carry
    new = jnp.tanh(x @ p["a"] + h1 @ p["b"])
    return (new, jnp.tanh((h1 + new) @ p["c"] + h2 @ p["d"])), (h1, h2, new)


def product_of_weights(p, carry, x):
    h1, h2 = carry
    m = p["a"] @ p["b"]
    h1 = jnp.tanh(x @ m + h1 @ p["b"])
    return (h1, jnp.tanh(h1 @ m + h2 @ p["d"])), None


def readouts(p, carry, x):
    h1, h2 = carry
    h1 = jnp.tanh(x @ p["a"] + h1 @ p["b"])
    h2 = jax.nn.softplus(h1 @ p["c"] + h2 @ p["d"])
    return (h1, h2), [jax.nn.log_softmax(h @ p["e"]) for h in (h1, h2)]


def broadcast(p, carry, x):
    s, h = carry
    s = jnp.tanh(x.sum() + s)
    h = jnp.tanh(jnp.full((B, H), s) @ p["c"] + h @ p["d"])
    return (s, h), h


# A step, its initial carry, and how many loops it becomes.
STEPS = {
    "two layers": (two_layers, lambda: tuple(drawn((B, H), (B, H))), 2),
    "three layers": (three_layers, lambda: tuple(drawn(*[(B, H)] * 3)), 3),
    "in a jit": (in_a_jit, lambda: tuple(drawn(*[(B, H)] * 3)), 3),
    "counted": (
        counted,
        lambda: (*drawn((B, H)), jnp.int32(0), *drawn((B, H))),
        2,
    ),
    "with a constant": (
        with_a_constant,
        lambda: (*drawn((H,), (B, H), (B, H)), jnp.zeros(())),
        2,
    ),
    "delayed": (delayed, lambda: tuple(drawn(*[(B, H)] * 4)), 2),
    "common input": (common_input, lambda: tuple(drawn((B, H), (B, H))), 2),
    "noisy": (noisy, lambda: (jax.random.key(1), *drawn((B, H), (B, H))), 2),
    "carries as outputs": (
        carries_as_outputs,
        lambda: tuple(drawn((B, H), (B, H))),
        2,
    ),
    "product of weights": (
        product_of_weights,
        lambda: tuple(drawn((B, H), (B, H))),
        2,
    ),
    "readouts": (readouts, lambda: tuple(drawn((B, H), (B, H))), 2),
    "broadcast": (broadcast, lambda: tuple(drawn((), (B, H))), 2),
}


@functools.cache
def made(name, length=T):
    step, init, _ = STEPS[name]
    return step, weights(), init(), drawn((length, B, H))[0]


def plan_of(name, **options):
    step, params, init, xs = made(name)
    return scanrnn.plan(functools.partial(step, params), init, xs, **options)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_loops_one_after_the_other_equal_one_loop(name, reverse):
    assert_same(made(name), outputs_of_gradients, plan=SPLIT, reverse=reverse)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_becomes_the_loops_that_gain(name):
    plan = plan_of(name, implementation="fission")
    assert len(plan.parts) == STEPS[name][2]
    leaves = [k for part, _ in plan.parts for k in part.leaves]
    fixed = [0] if name == "with a constant" else []
    assert sorted(leaves + fixed) == list(range(len(leaves + fixed)))


@pytest.mark.parametrize("name", ["three layers", "counted", "noisy"])
@pytest.mark.parametrize(
    "transform",
    [value_and_gradients, forward_over_reverse],
    ids=["values alone", "second order"],
)
def test_split_loops_are_right_under(name, transform):
    assert_same(made(name), transform, plan=SPLIT, rtol=1e-7)


@pytest.mark.parametrize("length", [1, 63])
def test_split_loops_of_any_length_are_right(length):
    assert_same(made("three layers", length), outputs_of_gradients, plan=SPLIT)


@pytest.mark.parametrize("residuals", ["minimal", "recompute", "everything"])
@pytest.mark.parametrize("unroll", [0, 2])
def test_split_loops_keep_what_is_asked(residuals, unroll):
    options = scanrnn.Options(implementation="fission", residuals=residuals)
    assert_same(made("three layers"), outputs_of_gradients, plan=options, unroll=unroll)


def test_split_loops_map_over_examples():
    step, params, init, xs = made("three layers")

    def gradient(scan):
        def loss(params, init, xs):
            carry, ys = scan(functools.partial(step, params), init, xs)
            return sum(jnp.sin(a).sum() for a in jax.tree.leaves((carry, ys)))

        one = jax.grad(loss, (0, 1, 2))
        twice = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a]), (params, init, xs))
        return jax.vmap(one, (None, 0, 0))(params, *twice[1:]), jax.vmap(one)(*twice)

    ours = gradient(functools.partial(scanrnn.scan, plan=SPLIT))
    theirs = gradient(jax.lax.scan)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jnp.allclose(a, b, rtol=1e-9, atol=1e-10)


def test_split_loops_run_from_an_exported_file():
    step, params, init, xs = made("three layers")

    def run(params, init, xs):
        return scanrnn.scan(functools.partial(step, params), init, xs, plan=SPLIT)

    exported = jax.export.export(jax.jit(run), platforms=["cpu", "tpu"])
    found = exported(params, init, xs).call(params, init, xs)
    wanted = jax.lax.scan(functools.partial(step, params), init, xs)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert jnp.allclose(a, b, rtol=1e-9)


def test_split_loops_run_on_a_sharded_batch():
    step, params, init, xs = made("two layers")
    mesh = Mesh(jax.devices()[:1], ("batch",))
    rows = NamedSharding(mesh, PartitionSpec(None, "batch"))

    @jax.jit
    def gradient(params, xs):
        def loss(params):
            run = functools.partial(step, params)
            return scanrnn.scan(run, init, xs, plan=SPLIT)[1].sum()

        return jax.grad(loss)(params)

    found = gradient(params, jax.device_put(xs, rows))
    wanted = gradient(params, xs)
    for name in ("a", "b", "g"):
        assert jnp.allclose(found[name], wanted[name], rtol=1e-9)


def layers(batch=16, features=64, steps=40):
    h = jnp.zeros((batch, features))
    big = {k: jnp.ones((features, features)) for k in NAMES[:6]}
    big["g"] = jnp.ones((2 * features, features))
    return big, (h, h), jnp.ones((steps, batch, features))


def test_a_stack_of_layers_is_split_by_default():
    params, init, xs = layers()
    plan = scanrnn.plan(functools.partial(two_layers, params), init, xs)
    assert plan.executor.name == "fission"
    inside = [g for g in plan.gemms if g.phase == "forward" and g.where == "loop"]
    assert [(g.K, g.count) for g in inside] == [(64, 40), (64, 40)]
    single = scanrnn.plan(
        functools.partial(two_layers, params), init, xs, implementation="planned"
    )
    inside = [g for g in single.gemms if g.phase == "forward" and g.where == "loop"]
    assert sorted(g.K for g in inside) == [64, 128]


def compiled(implementation, gradient):
    params, init, xs = layers()

    def loss(params, xs):
        run = functools.partial(two_layers, params)
        return scanrnn.scan(run, init, xs, implementation=implementation)[1].sum()

    f = jax.grad(loss) if gradient else loss
    return jax.jit(f).lower(params, xs).compile()


def temporaries(implementation, gradient):
    found = compiled(implementation, gradient).memory_analysis()
    return found.temp_size_in_bytes


def test_a_split_stack_trains_with_less_memory():
    assert temporaries("fission", True) < 0.9 * temporaries("planned", True)


def test_a_forward_pass_alone_on_a_cpu_is_one_loop():
    assert temporaries("fission", False) == temporaries("planned", False)


@pytest.mark.parametrize(("steps", "loops"), [(64, 2), (2**21, 1)])
def test_a_forward_pass_on_a_tpu_is_split_if_what_crosses_fits(steps, loops):
    params, init, _ = layers()
    xs = jax.ShapeDtypeStruct((steps, 16, 64), init[0].dtype)
    options = scanrnn.Options(machine="tpu v5e", implementation="fission")

    def run(params, xs):
        step = functools.partial(two_layers, params)
        return scanrnn.scan(step, init, xs, plan=options)[0]

    traced = jax.jit(run).trace(params, xs)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    carried = [line for line in text.splitlines() if "stablehlo.while" in line]
    assert len(carried) == loops + (steps > 64)  # and one over chunks


def test_a_plan_of_several_loops_says_what_each_of_them_is():
    text = str(plan_of("three layers", implementation="fission"))
    assert "run by the executor fission" in text
    assert "Part 1 of 3 carries" in text
    assert "Part 3 of 3 carries" in text
    assert "\nPart 2: Loop in reverse: " in text
    assert "Loop for values" in text and "Part 2: Loop for values" not in text
    assert "Without a gradient: one loop" in text
    long = plan_of("three layers", implementation="fission").describe(long=True)
    assert "Part 2: Before the loop: dot_general" in long
    assert "Part 3: Kept per step" in long
    assert plan_of("three layers", implementation="fission").residual_bytes[0] > 0


@jax.custom_vjp
def clipped(h):
    return h


clipped.defvjp(lambda h: (h, None), lambda _, ct: (jnp.clip(ct, -1, 1),))


def lstm_like(p, carry, x):
    h, c = carry
    c = jnp.tanh(h @ p["a"]) + c
    return (jnp.tanh(c @ p["b"] + x), c), h


def own_rule(p, carry, x):
    (h1, h2), y = two_layers(p, carry, x)
    return (h1, h2), clipped(y)


def side_by_side(p, carry, x):
    h1, h2 = carry
    return (jnp.tanh(x + h1 @ p["a"]), jnp.tanh(x + h2 @ p["b"])), None


def with_a_memory(p, carry, x):
    """The second layer reads what the first one reads of a matrix."""
    M, h = carry
    M = 0.9 * M + x[:, :, None] * jnp.tile(x @ p["a"], (1, 3))[:, None]
    read = jnp.einsum("bij,bi->bj", M, x @ p["b"])[:, :H]
    return (M, jnp.tanh(read @ p["c"] + h @ p["d"])), h


def with_logits(p, carry, x):
    h, total = carry
    h = jnp.tanh(x + h @ p["a"])
    return (h, total + (h @ p["b"]).sum()), None


def elementwise(p, carry, x):
    h, s = carry
    h = jnp.tanh(x + h @ p["a"])
    return (h, 0.9 * s + h), s


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lstm_like, "all leaves of its carry need one another"),
        (own_rule, "custom_vjp"),
        (side_by_side, "no product would leave a later loop"),
        (elementwise, "no product would leave a later loop"),
        (with_a_memory, "too much would cross"),
        (with_logits, "too much would cross"),
    ],
)
def test_other_steps_stay_one_loop(step, why):
    init, xs = tuple(drawn((B, H), (B, H))), drawn((T, B, H))[0]
    if step is with_a_memory:
        init = drawn((B, H, 3 * H))[0], init[1]
    if step is with_logits:
        init = init[0], jnp.zeros(())
    with pytest.raises(ValueError, match=why):
        scanrnn.plan(
            functools.partial(step, weights()), init, xs, implementation="fission"
        )


def test_fission_is_among_the_executors():
    assert EXECUTORS["fission"].NAME == "fission"


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(4))
def test_split_loops_of_generated_layers_equal_one_loop(shard):
    split = []

    def check(drawn):
        several, reverse = drawn
        make = stacked(several, jax.random.key(0))
        step, params, init, xs = make
        run = functools.partial(step, params)
        plan = scanrnn.plan(run, init, xs, reverse=reverse)
        reasons = {c.name: c.refusal for c in plan.candidates}
        if reasons.get("fission", "nothing to plan") is None:
            split.append(several)
            assert_same(
                make, outputs_of_gradients, plan=SPLIT, reverse=reverse, rtol=1e-7
            )

    several = st.lists(programs(size=4), min_size=2, max_size=4)
    examine(60, shard, st.tuples(several, st.booleans()), check)
    assert len(split) >= 5
