"""Leaves that enter a step by a sum: the sum is what a parallel loop computes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import _scans
from scanrnn.planner.entries import entered
from scanrnn.planner.rows import Rows
from tests.compare import assert_same, value_and_gradients
from tests.test_affine_kinds import mostly_slow

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


@pytest.mark.parametrize("length", mostly_slow([1, 2, 63], {1, 63}))
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", mostly_slow(STEPS, QUICK))
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
        sums, _ = _scans.entered([A], [b], [d], [start], Rows(length, True))
        return sums[0]

    shapes = [(length, B, D), (1, B, D), (length, B, D), (B, D)]
    closed = jax.make_jaxpr(run)(*(jnp.ones(shape) for shape in shapes))
    kept = [e.primitive.name for e in closed.eqns if _whole(e, length)]
    assert "mul" not in kept and "add" in kept


def _whole(eqn, length):
    shapes = [v.aval.shape for v in eqn.outvars]
    return any(shape[:1] == (length,) for shape in shapes)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_scan_of_one_factor_equals_that_of_many(length, reverse):
    draw = functools.partial(np.random.default_rng(length).uniform, -0.5, 0.5)
    steps, n = Rows(length, reverse), 2
    A = [jnp.asarray(draw(size=(1, 1, D))) for _ in range(n * n)]
    b = [jnp.asarray(draw(size=(length, B, D))) for _ in range(n)]
    start = [jnp.asarray(draw(size=(B, D))) for _ in range(n)]
    for m in (1, n):
        args = b[:m], start[:m], steps
        many = [jnp.broadcast_to(a, (length, 1, D)) for a in A[: m * m]]
        one_, wanted = _scans.affine(A[: m * m], *args), _scans.affine(many, *args)
        for a, w in zip(one_, wanted, strict=True):
            np.testing.assert_allclose(a, w, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 4, 5, 63, 64])
def test_scan_whose_values_are_padded_is_the_scan_whose_values_are_joined(
    length, reverse
):
    """A GPU adds padded arrays up. Infinities and NaN stay in their steps."""
    draw = functools.partial(np.random.default_rng(length).uniform, -0.5, 0.5)
    A, b, d = (jnp.asarray(draw(size=(length, B, D))) for _ in range(3))
    b = b.at[length // 2, 0].set(jnp.inf).at[length // 2, 1].set(jnp.nan)
    A, start = A.at[length // 2].set(0.0), jnp.asarray(draw(size=(B, D)))
    gone, rows = A == 0, Rows(length, reverse)

    def scans(pads):
        largest = _scans.joined(jnp.maximum, A, b, gone, start, rows, pads)
        summed = _scans.entered([A], [b], [d], [start], rows, pads)
        return *_scans.affine([A], [b], [start], rows, pads), largest, summed

    jax.tree.map(np.testing.assert_array_equal, scans(True), scans(False))


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("length", [1, 9])
def test_scan_with_factors_of_zero_has_the_derivatives_of_lax_scan(length, pads):
    """JAX differentiates it: in chunks of a GPU, and twice in a solver."""
    draw = np.random.default_rng(0).normal
    A = jnp.asarray(draw(size=(length, D))).at[length // 2].set(0.0)
    args = A, jnp.asarray(draw(size=(length, D))), jnp.asarray(draw(size=D))

    def ours(A, b, start):
        (h,) = _scans.affine([A], [b], [start], Rows(length), pads)
        return jnp.sin(h).sum()

    def wanted(A, b, start):
        def step(h, x):
            h = x[0] * h + x[1]
            return h, jnp.sin(h)

        return lax.scan(step, start, (A, b))[1].sum()

    every = (0, 1, 2)
    for derivative in (jax.grad, jax.hessian):
        found, right = (derivative(f, every)(*args) for f in (ours, wanted))
        chex.assert_trees_all_close(found, right, rtol=1e-10, atol=1e-10)


def test_scan_of_one_factor_is_within_the_bound_of_its_errors():
    """The error is within `4 u (t + 2 log2 T) S_t`; S is the sum of magnitudes."""
    length = 1000
    b = jnp.asarray(np.random.default_rng(0).normal(size=(length, 1)), jnp.float32)
    t = np.arange(1, length + 1)[:, None]
    unit = jnp.finfo(jnp.float32).eps / 2
    for factor in (0.999, -0.97, 1.004, 1e-3):
        A, start = jnp.full((1, 1), factor, jnp.float32), jnp.zeros(1, jnp.float32)
        (h,) = _scans.affine([A], [b], [start], Rows(length))
        exact, sizes = (
            lax.scan(lambda h, x, a=a: (a * h + x,) * 2, jnp.zeros(1), rows)[1]
            for a, rows in (
                (np.float64(A[0]), np.float64(b)),
                (np.abs(np.float64(A[0])), np.abs(np.float64(b))),
            )
        )
        bound = 4 * unit * (t + 2 * np.log2(length)) * sizes
        assert jnp.all(jnp.abs(h - exact) <= bound)


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
