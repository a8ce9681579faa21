"""Recurrences solved by Newton's method, compared with `lax.scan` in float64."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from tests.cell_table import CELLS, draw

T = 40


def problem(name, length=T):
    params, _, carry = draw(CELLS[name])
    generator = np.random.default_rng(1)
    xs = jnp.asarray(generator.normal(size=(length, 2, CELLS[name].in_features)))
    return CELLS[name].cell.step, params, carry, xs


def score(scan, step, params, carry, xs):
    outs = scan(functools.partial(step, params), carry, xs)[:2]
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs)), outs


def assert_solved(step, *args, **options):
    both = []
    for scan in (lax.scan, functools.partial(scanrnn.solve, **options)):
        f = functools.partial(score, scan, step)
        both.append(jax.jit(jax.value_and_grad(f, (0, 1, 2), has_aux=True))(*args))
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def tanh_step(u, h, x):
    h = jnp.tanh(u * h + x)
    return h, h


def small(length=T):
    return tanh_step, jnp.array([0.5, -0.3]), jnp.zeros(2), jnp.ones((length, 2))


@pytest.mark.parametrize("length", [1, T])
def test_solution_and_gradients_equal_lax_scan(length):
    assert_solved(*small(length))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sru", "indrnn", "indrnn-tanh", "lru", "mingru-linear"]
)
def test_cell_solved_equals_lax_scan(name):
    assert_solved(*problem(name))


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 1, 3])
def test_steps_that_are_not_found_are_computed_one_by_one(most):
    """In a chaotic recurrence no guess is good: k iterations find only k steps."""

    def logistic_map(r, h, x):
        h = r * h * (1 - h) + 1e-3 * x
        return h, h

    args = logistic_map, jnp.asarray(3.9), jnp.full(3, 0.3), jnp.ones((20, 3))
    assert_solved(*args, iterations=most)
    step = functools.partial(args[0], args[1])
    *_, told = scanrnn.solve(step, *args[2:], iterations=most)
    assert told.iterations == most and told.steps >= most


def test_affine_recurrence_takes_one_iteration_and_its_solution_none():
    def step(h, x):
        h = 0.5 * h + x
        return h, h

    init, xs = jnp.ones(3), jnp.ones((T, 3))
    _, ys, told = scanrnn.solve(step, init, xs)
    assert told == (1, T)
    *_, told = scanrnn.solve(step, init, xs, guess=ys)
    assert told == (0, T)


def test_overflow_of_an_iteration_is_no_nan():
    """Newton's first iterations overflow float32. The result is that of the loop."""

    def step(h, x):
        h = jnp.exp(-h) * x
        return h, h

    init, xs = jnp.full(2, -80.0, jnp.float32), jnp.ones((9, 2), jnp.float32)
    _, wanted = lax.scan(step, init, xs)
    _, ys, _ = scanrnn.solve(step, init, xs)
    np.testing.assert_allclose(ys, wanted, rtol=1e-5)


@pytest.mark.slow
def test_second_derivatives_equal_those_of_lax_scan():
    step, u, init, xs = small()

    def loss(scan, u):
        return score(scan, step, u, init, xs)[0]

    ours, theirs = (
        jax.hessian(functools.partial(loss, scan))(u)
        for scan in (scanrnn.solve, lax.scan)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


def noisy(h, x):
    x, key = x
    h = jnp.tanh(h + x) + jax.random.normal(key, h.shape)
    return h, h


def shown(h, x):
    jax.debug.print("{}", x)
    return jnp.tanh(h + x), h


def test_solve_refuses_what_it_cannot():
    step, u, init, xs = small()
    step = functools.partial(step, u)
    with pytest.raises(TypeError, match="floating-point or complex arrays"):
        scanrnn.solve(lambda n, x: (n + 1, x), 0, xs)
    with pytest.raises(ValueError, match="guess must be a carry for each step"):
        scanrnn.solve(step, init, xs, guess=jnp.zeros((3, 2)))
    arrays = [jnp.array(-1), jnp.array([1, 2]), jnp.array(True)]
    for wrong in (-1.0, float("nan"), "1e-3", [1e-3], True, *arrays):
        said = re.escape(f"tolerance={wrong!r}, want a number >= 0")
        with pytest.raises(ValueError, match=said):
            scanrnn.solve(step, init, xs, tolerance=wrong)
    for wrong in (-1, 2.5, "16", None, True, jnp.array(2.5), *arrays):
        said = re.escape(f"iterations={wrong!r}, want an int of")
        with pytest.raises(ValueError, match=said):
            scanrnn.solve(step, init, xs, iterations=wrong)
    with pytest.raises(ValueError, match="there are no steps"):
        scanrnn.solve(step, init, xs[:0])
    keys = jax.random.split(jax.random.key(0, impl="rbg"), len(xs))
    with pytest.raises(ValueError, match="other random numbers if all steps"):
        scanrnn.solve(noisy, init, (xs, keys))
    with pytest.raises(ValueError, match="side effects"):
        scanrnn.solve(shown, init, xs)
    W = 0.1 * jnp.ones((9, 9))
    with pytest.raises(ValueError, match="9 numbers are coupled"):
        scanrnn.solve(lambda h, x: (jnp.tanh(h @ W), h), jnp.ones(9), jnp.ones((4, 1)))


@pytest.mark.parametrize("worst", [-jnp.inf, jnp.inf])
def test_infinite_carries_do_not_pass_as_solved(worst):
    def step(m, x):
        m = jnp.maximum(m, x) if worst < 0 else jnp.minimum(m, x)
        return m, m

    xs = jnp.arange(4.0)
    for ours, theirs in zip(
        scanrnn.solve(step, jnp.asarray(worst, float), xs)[:2],
        lax.scan(step, jnp.asarray(worst, float), xs),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_tolerance_of_half_precision_is_its_rounding():
    def step(h, x):
        h = jnp.tanh(0.5 * h + x)
        return h, h

    init, xs = jnp.zeros(2, "bfloat16"), jnp.full((9, 2), 0.2, "bfloat16")
    _, ys, solved = scanrnn.solve(step, init, xs)
    assert int(solved.iterations) > 0
    wanted = lax.scan(step, init, xs)[1]
    close = functools.partial(np.testing.assert_allclose, atol=0.02)
    close(ys.astype(float), wanted.astype(float))


def test_limits_may_be_arrays_and_traced():
    step, u, init, xs = small()
    step = functools.partial(step, u)
    solve = functools.partial(scanrnn.solve, step, init, xs)
    wanted = solve(iterations=2, tolerance=0.1)
    limits = jnp.array(2), jnp.array(0.1)
    traced = jax.jit(lambda n, t: solve(iterations=n, tolerance=t))
    for found in (solve(iterations=limits[0], tolerance=limits[1]), traced(*limits)):
        for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_complex_carry_is_solved_or_refused_with_the_way_out():
    def holomorphic(u, h, x):
        h = jnp.tanh(u * h + x)
        return h, jnp.abs(h)

    u, init = jnp.array([0.5 + 0.2j, -0.3j]), jnp.zeros(2, complex)
    xs = (jnp.linspace(-1, 1, 40) * (1 + 0.5j)).reshape(20, 2)
    for a, b in zip(
        scanrnn.solve(functools.partial(holomorphic, u), init, xs)[:2],
        lax.scan(functools.partial(holomorphic, u), init, xs),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    with pytest.raises(ValueError, match="or carry real and imaginary parts"):
        scanrnn.solve(lambda h, x: (u * jnp.conj(h) + x, h), init, xs)
