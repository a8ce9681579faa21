"""Programs that once failed, or took long to plan: faults found by reading code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.planner import affine, leaves, trace
from scanrnn.planner.factors import factors

T, B, D = 5, 4, 16
KEYS = jax.random.split(jax.random.key(0), 4)
W, U = (0.3 * jax.random.normal(key, (D, D)) for key in KEYS[:2])


def test_vmap_over_nothing_gives_empty_results():
    """A counter in the carry is the same for the whole batch, which is empty here."""

    def step(carry, x):
        h, n = carry
        h = jnp.tanh(x @ W + h @ U)
        return (h, n + 1), h

    def run(scan, xs, **options):
        return scan(step, (jnp.zeros((B, D)), 0), xs, **options)

    nothing = jnp.zeros((0, T, B, D))
    got = jax.vmap(lambda xs: run(scanrnn.scan, xs, implementation="planned"))(nothing)
    want = jax.vmap(lambda xs: run(lax.scan, xs))(nothing)
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(one)] for one in (got, want)]
    assert shapes[0] == shapes[1] and got[1].shape == want[1].shape


def test_sum_in_half_precision_is_taken_under_strict_promotion():
    def run(**options):
        init, xs = jnp.zeros(8, jnp.bfloat16), jnp.ones((64, 8), jnp.bfloat16)
        return scanrnn.scan(lambda s, x: (s + x, None), init, xs, **options)[0]

    with jax.numpy_dtype_promotion("strict"):
        got = run(implementation="associative")
    np.testing.assert_array_equal(got, run(implementation="scan"))


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_quantized_carry_is_not_affine(dtype):
    def step(h, x):
        h = 0.9 * h.astype(dtype).astype(h.dtype) + x
        return h, h

    traced = trace(step, jnp.zeros(8), jnp.ones((T, 8)), None)
    (group,) = affine.groups(traced.graph)
    assert group.kind == "sequential"


def test_carry_rounded_to_half_precision_stays_affine():
    def step(h, x):
        h = (0.9 * h + x).astype(jnp.bfloat16).astype(h.dtype)
        return h, h

    traced = trace(step, jnp.zeros(8), jnp.ones((T, 8)), None)
    (group,) = affine.groups(traced.graph)
    assert group.kind == "diagonal"


def test_squares_of_squares_have_few_factors():
    def step(h, x):
        a = x
        for _ in range(40):
            a = a * a
        h = a * h + x
        return h, h.sum(-1)

    traced = trace(step, jnp.zeros((B, D)), jnp.ones((T, B, D)), None)
    product = next(e for e in reversed(traced.graph.eqns) if e.primitive.name == "mul")
    assert len(factors(traced.graph, product.outvars[0])) == 2


def test_leaves_that_read_one_another_are_one_group():
    """The state of a training loop has as many. By sets of Python this took minutes."""

    def step(leaves, x):
        total = sum(leaves)
        return [leaf + total for leaf in leaves], total

    traced = trace(step, [jnp.float32(0)] * 600, jnp.ones(T), None)
    (part,) = leaves.components(traced.graph)
    assert part == tuple(range(600))


@pytest.mark.parametrize(
    "old, new, seen_through",
    [
        ("bfloat16", "float32", True),
        ("float16", "bfloat16", False),
        ("bfloat16", "float16", False),
        ("float8_e4m3fn", "float8_e5m2", False),
        ("float8_e4m3fn", "float32", True),
        ("float32", "int32", False),
        ("bool", "float32", False),
    ],
)
def test_factor_is_seen_through_a_cast_that_rounds_nothing(old, new, seen_through):
    def step(h, x):
        return h, x.astype(new)

    traced = trace(step, jnp.zeros(()), jnp.zeros((T, B, D), old), None)
    with jax.numpy_dtype_promotion("strict"):
        (factor,) = factors(traced.graph, traced.graph.ys[0])
    assert (factor.atom is traced.graph.xs[0]) == seen_through
