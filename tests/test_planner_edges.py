"""More steps that once gave wrong results: ensembles, empty parts, rounding, types."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import scanrnn
from tests import step_table
from tests.compare import assert_same, score, value_and_gradients
from tests.step_table import normalise

T, B, D, H = 5, 3, 4, 6


@pytest.fixture(scope="module")
def arrays():
    """Two recurrent matrices, an input matrix, a carry and inputs."""
    shapes = {"U": (H, H), "V": (H, H), "W": (D, H), "h": (B, H), "xs": (T, B, D)}
    return step_table.arrays(jax.random.key(3), **shapes)


@pytest.mark.parametrize(
    "readout",
    [lambda s, U: s, lambda s, U: s * s, lambda s, U: s @ U, lambda s, U: s.T @ s],
    ids=["itself", "square", "product", "gram"],
)
def test_output_that_no_mapped_input_reaches_equals_lax_scan(arrays, readout):
    """The gradient of an ensemble with respect to weights that all members share."""

    def gradient(scan):
        def run(h, a):
            def step(carry, x):
                h, s = carry
                h, s = jnp.tanh(h @ arrays["U"] + x @ arrays["W"]), 0.9 * s + a * h[:1]
                return (h, x @ arrays["W"] * a + carry[1]), readout(
                    carry[1], arrays["U"]
                )

            return scan(step, (h, arrays["h"]), arrays["xs"])

        def loss(a):
            return score(jax.vmap(run, (0, None))(jnp.stack([arrays["h"]] * 2), a))

        return jax.jit(jax.grad(loss))(2.0)

    np.testing.assert_allclose(gradient(scanrnn.scan), gradient(lax.scan), rtol=1e-9)


def test_gradient_of_mapped_gradients_of_an_unmapped_carry_equals_lax_scan(arrays):
    def total(scan, W, h, xs):
        def loss(W, h, xs):
            def step(carry, x):
                return (jnp.tanh(x @ W + carry[0]), x @ W * 0 + carry[1]), None

            return score(scan(step, (h, h), xs)[0])

        over = jax.vmap(jax.grad(loss, (0, 1, 2)), (0, None, None))
        return score(over(jnp.stack([W, 2 * W]), h, xs))

    args = arrays["W"], arrays["h"], arrays["xs"]
    ours, theirs = (
        jax.jit(jax.grad(functools.partial(total, scan), (0, 1, 2)))(*args)
        for scan in (scanrnn.scan, lax.scan)
    )
    chex.assert_trees_all_close(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
def test_split_of_a_single_feature_with_an_empty_part_equals_lax_scan(arrays, joined):
    def step(p, h, x):
        one, none = jnp.split(x[:, :1], [1], -1)
        one = jnp.concatenate([one, none], -1) if joined else one
        h = jnp.tanh(one @ p["W"][:1] + h @ p["U"])
        return h, (h, none)

    make = step, arrays, arrays["h"], arrays["xs"]
    assert_same(make, value_and_gradients)


def test_callback_in_a_custom_jvp_equals_lax_scan(arrays):
    @jax.custom_jvp
    def twice(x):
        return jax.pure_callback(lambda a: a * 2, jax.typeof(x), x)

    twice.defjvp(lambda p, t: (twice(*p), 2 * t[0]))

    def step(p, h, x):
        h = jnp.tanh(twice(x @ p["W"]) + h @ p["U"])
        return h, h

    assert_same((step, arrays, arrays["h"], arrays["xs"]), value_and_gradients)


def test_rounding_by_a_large_number_equals_lax_scan(arrays):
    """`(z + big) - big` rounds z to an integer, and must not become z."""
    big = 1.5 * 2**52

    def step(p, h, x):
        h = ((h @ p["U"] * 10 + x @ p["W"]) + big) - big
        return h * 0.1, h

    make = step, arrays, arrays["h"], arrays["xs"]
    assert_same(make, lambda loss, outputs: jax.jit(outputs))


@pytest.mark.parametrize("options", [{"chunk": 2}, {"residuals": "chunked"}], ids=str)
def test_weak_types_that_change_places_equal_those_of_lax_scan(arrays, options):
    def run(scan, **more):
        def step(carry, x):
            h, a, b = carry
            return (jnp.tanh(h @ arrays["U"] + x @ arrays["W"]), b, a), a

        return scan(
            step, (arrays["h"], 1.0, jnp.asarray(2.0, float)), arrays["xs"], **more
        )

    ours = run(scanrnn.scan, plan=scanrnn.Options(**options))
    weak = [x.weak_type for x in jax.tree.leaves(ours)]
    assert weak == [x.weak_type for x in jax.tree.leaves(run(lax.scan))]


@pytest.mark.parametrize("call", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_random_numbers_without_a_key_are_drawn_at_each_step(arrays, call):
    draw = call(lambda: lax.rng_uniform(0.0, 1.0, (2,)))

    def step(h, x):
        return jnp.tanh(h @ arrays["U"] + x @ arrays["W"]), [draw() for _ in range(2)]

    _, drawn = scanrnn.scan(step, arrays["h"], arrays["xs"])
    assert len(np.unique(drawn)) == 2 * 2 * T
    assert "lax.rng_uniform" in str(scanrnn.plan(step, arrays["h"], arrays["xs"]))


@jax.custom_vjp
def clipped(w):
    """The gradient of each step is clipped, not the gradient of the sequence."""
    return w * 1.0


clipped.defvjp(lambda w: (w, None), lambda _, ct: (jnp.clip(ct, -0.01, 0.01),))


def clipped_recurrent(p, h, x):
    h = jnp.tanh(x @ p["W"] + h @ clipped(p["U"]))
    return h, h


def clipped_input(p, h, x):
    h = jnp.tanh(x @ (2 * clipped(p["W"])) + h @ p["U"])
    return h, h


def clipped_readout(p, h, x):
    h = jnp.tanh(x @ p["W"] + h @ p["U"])
    return h, h @ clipped(p["V"])


def clipped_gain_of_a_norm(p, h, x):
    h = jnp.tanh(normalise(x @ p["W"]) * clipped(p["h"][0]) + h @ p["U"])
    return h, h


@pytest.mark.parametrize(
    "step",
    [clipped_recurrent, clipped_input, clipped_readout, clipped_gain_of_a_norm],
    ids=lambda step: step.__name__,
)
def test_rule_of_the_author_for_a_weight_sees_each_step(arrays, step):
    assert_same((step, arrays, arrays["h"], arrays["xs"]), value_and_gradients)


def test_callback_in_the_rule_of_a_custom_jvp_equals_lax_scan(arrays):
    @jax.custom_jvp
    def square(x):
        return x * x

    def twice(x):
        return jax.pure_callback(lambda a: np.asarray(2 * a), jax.typeof(x), x)

    square.defjvp(lambda p, t: (square(*p), twice(*p) * t[0]))

    def step(p, h, x):
        h = jnp.tanh(square(x @ p["W"]) + h @ p["U"])
        return h, h

    make = step, arrays, arrays["h"], arrays["xs"]
    assert_same(make, value_and_gradients)
    plan = scanrnn.plan(functools.partial(step, arrays), *make[2:])
    assert not plan.defer and "cannot be batched" in str(plan)


def test_rule_of_a_custom_jvp_that_can_be_batched_stays_ours(arrays):
    def step(h, x):
        h = jax.nn.relu(jax.nn.relu(x @ arrays["W"]) + h @ arrays["U"])
        return h, h

    plan = scanrnn.plan(step, arrays["h"], arrays["xs"])
    assert plan.defer and [v.aval.shape for v in plan.stages.hoisted] == [(B, H)]
    assert (
        sum(e.primitive.name == "custom_jvp_call" for e in plan.stages.loop.eqns) == 1
    )


def test_rounding_by_a_large_array_equals_lax_scan(arrays):
    def step(p, h, x):
        z = (h @ p["U"] * 10 + x @ p["W"] + p["big"]) - p["big"]
        return z * 0.1, z

    make = step, arrays | {"big": jnp.asarray(1.5 * 2**52)}, arrays["h"], arrays["xs"]
    assert_same(make, lambda loss, outputs: jax.jit(outputs))


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.softplus, normalise])
def test_gradient_inside_shard_map_equals_that_of_lax_scan(arrays, activation):
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))
    specs = P("batch"), P(None, "batch")

    def gradient(scan):
        def loss(h, xs):
            def step(h, x):
                h = activation(x @ arrays["W"] + h @ arrays["U"])
                return h, h

            return score(scan(step, h, xs))

        run = jax.shard_map(
            jax.grad(loss, (0, 1)), mesh=mesh, in_specs=specs, out_specs=specs
        )
        return jax.jit(run)(arrays["h"], arrays["xs"])

    chex.assert_trees_all_close(gradient(scanrnn.scan), gradient(lax.scan), rtol=1e-9)


def test_gradient_under_strict_promotion_equals_that_of_lax_scan(arrays):
    half = {k: v.astype(jnp.bfloat16) for k, v in arrays.items()}

    def gradient(scan):
        def loss(p):
            def step(h, x):
                return jnp.tanh(x @ p["W"] + h @ p["U"]), None

            return scan(step, p["h"], p["xs"])[0].sum()

        return jax.jit(jax.grad(loss))(half)

    with jax.numpy_dtype_promotion("strict"):
        ours, theirs = gradient(scanrnn.scan), gradient(lax.scan)
    chex.assert_trees_all_close(ours, theirs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("length", [1, 2])
def test_plan_of_few_steps_with_a_large_norm_can_be_printed(length):
    W = jnp.ones((4, 2**20), "float32")

    def step(h, x):
        return jnp.tanh(h * 0.5 + normalise(x @ W)), None

    xs = jnp.ones((length, 1, 4), "float32")
    plan = scanrnn.plan(step, jnp.zeros((1, 2**20), "float32"), xs)
    assert plan.loop.norm_steps is None and "of norms" not in str(plan)
