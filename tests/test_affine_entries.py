"""Leaves that enter a step by a sum: the sum is what a parallel loop computes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.executors.parallel import scans
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.parallel.entries import entered
from tests.compare import assert_same, value_and_gradients

PARALLEL = scanrnn.Options(implementation="associative")
B, D = 2, 3
# Steps `step(params, carry, x)`. All have the same params and inputs.
STEPS, INITS = {}, {}


def one(step):
    STEPS[step.__name__], INITS[step.__name__] = step, lambda a: a
    return step


def pair(step):
    STEPS[step.__name__], INITS[step.__name__] = step, lambda a: (a, 0.5 * a)
    return step


@one
def leaky_sum_with_resets(params, h, x):
    x, gate, reset = x
    h = jnp.where(reset, params["init"], gate * h) + x
    return h, h


@one
def constant_factor(params, h, x):
    h = params["decay"] * h + x[0]
    return h, h


@one
def carry_is_not_the_output(params, h, x):
    """Its cotangent enters by no sum."""
    h = x[1] * h + params["init"]
    return h, x[0]


@one
def enters_forward(params, h, x):
    """The forward loop itself reads its carry in a sum only."""
    x, gate, reset = x
    total = h + x
    return jnp.where(reset, params["init"], gate * total), jnp.tanh(total)


@one
def enters_with_a_weight(params, h, x):
    total = h + jnp.broadcast_to(params["init"], h.shape)
    return x[1] * total + x[0], total


@one
def next_carry_is_the_output(params, h, x):
    """It is an array of all steps anyway, and so is its cotangent: that of x."""
    h = x[1] * (h + x[0])
    return h, h


@one
def enters_and_is_read(params, h, x):
    """The carry is read twice, so it does not enter by the sum."""
    total = h + x[0]
    return params["decay"] * total, total * h


@pair
def rotation(params, carry, x):
    (re, im), (x, gate, reset), a, b = carry, x, params["decay"], params["init"]
    re, im = a * re - b * im + x, gate * (b * re + a * im)
    re = jnp.where(reset, 0, re)
    return (re, im), (re, im)


@pair
def rotation_with_one_output(params, carry, x):
    """Only one of the two cotangents enters by a sum. The factors are constant."""
    re, im = carry
    a, b = params["decay"], params["init"]
    re, im = a * re - b * im + x[0], b * re + a * im
    return (re, im), re


@pair
def one_after_the_other(params, carry, x):
    """What enters the second leaf is the first one."""
    fast, slow = carry
    total = slow + fast
    return (params["decay"] * fast + x[0], x[1] * total), total


@one
def coupled_features(params, h, x):
    total = h + x[0]
    return total @ params["matrix"] * 0.3, total


def drawn(name, length):
    """Params, the first carry and inputs of a loop whose carry does not grow."""
    generator = np.random.default_rng(length)

    def draw(*shape, most=1.0):
        return jnp.asarray(generator.uniform(-most, most, shape))

    params = {"decay": draw(D, most=0.7), "init": draw(D, most=0.7)}
    params["matrix"] = draw(D, D)
    xs = draw(length, B, D), draw(length, B, D), draw(length, B, 1) > 0.8
    return params, INITS[name](draw(B, D)), xs


QUICK = {"leaky_sum_with_resets", "rotation_with_one_output"}


# The lengths and the directions are of the scan: others have each length, in one
# direction each.
BOTH_WAYS = [*itertools.product(sorted(QUICK), (False, True), (1, 63))]
OTHERS = [
    pytest.param(name, bool((i + k) % 2), length, marks=pytest.mark.slow)
    for i, name in enumerate(STEPS)
    for k, length in enumerate((1, 2, 63))
    if name not in QUICK or length == 2
]


@pytest.mark.parametrize(("name", "reverse", "length"), BOTH_WAYS + OTHERS)
def test_loop_that_enters_by_sums_equals_lax_scan(name, reverse, length):
    make = STEPS[name], *drawn(name, length)
    assert_same(make, value_and_gradients, plan=PARALLEL, reverse=reverse)


def plan_of(name):
    params, init, xs = drawn(name, 9)
    step = functools.partial(STEPS[name], params)
    return scanrnn.plan(step, init, xs, implementation="associative")


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        ("leaky_sum_with_resets", {0}),
        ("constant_factor", {0}),
        ("carry_is_not_the_output", set()),
        ("next_carry_is_the_output", set()),
        ("rotation", {0, 1}),
        ("rotation_with_one_output", {0}),
    ],
)
def test_cotangent_enters_a_reverse_step_by_a_sum(name, leaves):
    graph = plan_of(name).bodies["in reverse"].graph
    without, added = entered(graph)
    assert {*added} == leaves
    assert len(without.eqns) == len(graph.eqns) - len(leaves)
    for k, v in enumerate(graph.carry):
        assert (without.carry[k] is v) == (k not in leaves)


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        ("enters_forward", {0}),
        ("enters_with_a_weight", {0}),
        ("enters_and_is_read", set()),
        ("next_carry_is_the_output", set()),
        ("one_after_the_other", {1}),
        ("leaky_sum_with_resets", set()),
    ],
)
def test_leaf_enters_a_forward_step_by_a_sum(name, leaves):
    assert {*entered(plan_of(name).stages.loop)[1]} == leaves


def test_no_product_of_a_factor_and_a_cotangent_is_an_array_of_all_steps():
    """The cotangents that come in are only added; the scan multiplies them."""
    length = 64

    def run(A, b, d, start):
        sums, _ = scans.entered([A], [b], [d], [start], Rows(length, True))
        return sums[0]

    shapes = [(length, B, D), (1, B, D), (length, B, D), (B, D)]
    closed = jax.make_jaxpr(run)(*(jnp.ones(shape) for shape in shapes))
    kept = [e.primitive.name for e in closed.eqns if _whole(e, length)]
    assert "mul" not in kept and "add" in kept


def _whole(eqn, length):
    shapes = [v.aval.shape for v in eqn.outvars]
    return any(shape[:1] == (length,) for shape in shapes)


def test_factor_of_zero_forgets_infinities_that_enter():
    """At a reset nothing of the sum before it is left, as in a loop with a select."""

    def step(h, x):
        x, reset = x
        total = h + x
        return jnp.where(reset, 0.0, 0.5 * total), total

    reset = jnp.arange(6)[:, None] == 3
    xs = jnp.ones((6, 1)).at[2].set(jnp.inf), reset
    wanted = lax.scan(step, jnp.zeros(1), xs)
    got = scanrnn.scan(step, jnp.zeros(1), xs, implementation="associative")
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert jnp.isinf(got[1][3, 0]) and jnp.isfinite(got[1][4:]).all()


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_sum_of_half_precision_is_rounded_once(half):
    half = jnp.dtype(half)

    def step(h, x):
        total = h + x
        return 0.96875 * total, total

    xs = jnp.full((400, 2), 0.01, half)
    wanted = scanrnn.scan(step, jnp.zeros(2), xs.astype(float), implementation="scan")
    got = scanrnn.scan(step, jnp.zeros(2, half), xs, implementation="associative")
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == half
        np.testing.assert_allclose(a.astype(float), b, rtol=jnp.finfo(half).eps)
