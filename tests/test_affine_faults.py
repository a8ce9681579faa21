"""Steps that once gave wrong values in parallel over time, or by products of chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.planner.memories import memories

T, D = 20, 64
ONE, TWO, ROWS = jnp.ones(1), jnp.ones(2), jnp.arange(1.0, 8)
# The carry times one plus an input looks like each of these, but none is a sum.
NO_SUMS = {
    "one_minus_the_carry": (lambda h, x: 1 - h, 0.5, ROWS),
    "input_minus_the_carry": (lambda h, x: x - h, 0.5, ROWS),
    "whole_numbers": (lambda h, x: x - h, 3, jnp.arange(7)),
    "sum_over_inputs": (lambda h, x: jnp.sum(h + x), 1.0, jnp.ones((7, 3))),
    "sum_over_copies": (lambda h, x: jnp.full(3, h).sum() + x, 1.0, ROWS),
    "sum_over_a_new_axis": (lambda h, x: (h[:, None] + x).sum(-1), TWO, ROWS),
    "line_of_one": (lambda h, x: jnp.concatenate([h[1:], x[None]]), ONE, ROWS),
    "first_of_two": (lambda h, x: jnp.concatenate([x[None], h])[:1], ONE, ROWS),
    "padded_away": (lambda h, x: jnp.pad(h, (1, 0))[:1] + x, ONE, ROWS),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", NO_SUMS)
def test_step_that_looks_like_a_sum_equals_lax_scan(name, reverse):
    new, init, xs = NO_SUMS[name]

    def step(h, x):
        return (new(h, x),) * 2

    init = jnp.asarray(np.asarray(init))  # without a weak type
    wanted = lax.scan(step, init, xs, reverse=reverse)
    run = functools.partial(scanrnn.scan, implementation="associative")
    for ours, theirs in zip(run(step, init, xs, reverse=reverse), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def inputs(length=T):
    draw = np.random.default_rng(0).normal
    keys, queries, values = (jnp.asarray(draw(size=(length, D))) for _ in range(3))
    return jnp.asarray(3 * draw(size=(D, D))), keys, 4 * queries, values


# What a step reads of S, and S itself, if it is cast to another kind of number.
CASTS = {
    "whole_numbers_are_read": lambda S, q: (S, q.astype(int) @ S.astype(int)),
    "whole_numbers_are_kept": lambda S, q: (S.astype(int).astype(float), q @ S),
    "signs_are_read": lambda S, q: (S, q @ S.astype(bool).astype(float)),
    "complex_query": lambda S, q: (S, (q * (1 + 1j)) @ S),
}


@pytest.mark.parametrize("name", CASTS)
def test_memory_that_is_cast_is_none(name):
    S, *xs = inputs()

    def step(S, x):
        k, q, v = x
        return CASTS[name](0.9 * S + jnp.outer(k, v), q)

    plan = scanrnn.plan(step, S, xs)
    assert not memories(plan.stages.graph)
    for a, b in zip(scanrnn.scan(step, S, xs), lax.scan(step, S, xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def adds(S, k, v):
    return 0.9 * S + jnp.outer(k, v)


def corrects(S, k, v):
    return 0.9 * S + jnp.outer(k, v - 0.1 * (k @ S))


@pytest.mark.parametrize("where", ["keys", "values"])
@pytest.mark.parametrize("new", [adds, corrects])
def test_nan_where_steps_do_not_count_reaches_no_other_step(new, where):
    S, k, q, v = inputs()
    counts = jnp.arange(T) < 12
    bad = {"keys": k, "values": v}[where].at[12:].set(jnp.nan)
    k, v = (bad, v) if where == "keys" else (k, bad)

    def step(S, x):
        k, q, v, counts = x
        after = new(S, k, v)
        return jnp.where(counts, after, S), q @ after

    run = functools.partial(scanrnn.scan, implementation="chunkwise")
    (end, ys), (wanted, theirs) = (
        scan(step, S, (k, q, v, counts)) for scan in (run, lax.scan)
    )
    np.testing.assert_allclose(end, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ys[:12], theirs[:12], rtol=1e-9, atol=1e-9)


def test_infinity_before_a_new_start_reaches_no_later_chunk():
    S, k, q, v = inputs(40)

    def step(S, x):
        k, q, v, t = x
        S = adds(jnp.where(t == 18, 0, S), k, v)
        return S, q @ S

    xs = k, q, v.at[10].set(jnp.inf), jnp.arange(40)
    run = functools.partial(scanrnn.scan, implementation="chunkwise")
    (end, ys), (wanted, theirs) = (scan(step, S, xs) for scan in (run, lax.scan))
    np.testing.assert_allclose(end, wanted, rtol=1e-9, atol=1e-9)
    # The start is in the chunk of steps 16 to 31.
    np.testing.assert_allclose(ys[18:], theirs[18:], rtol=1e-9, atol=1e-9)


def test_second_derivative_by_a_decay_of_zero_is_that_of_lax_scan():
    k, v, fresh = jnp.ones((3, 2)), jnp.ones((3, 3)), jnp.ones((2, 3))
    starts = jnp.array([False, True, False])

    def loss(scan, decay):
        def step(S, x):
            k, v, start, a = x
            S = a * jnp.where(start, fresh, S) + jnp.outer(k, v)
            return S, k @ S

        ys = scan(step, jnp.zeros((2, 3)), (k, v, starts, decay))[1]
        return jnp.sum(jnp.sin(ys))

    run = functools.partial(scanrnn.scan, implementation="chunkwise")
    ours, theirs = (
        jax.hessian(functools.partial(loss, scan))(jnp.array([0.5, 0.0, 0.5]))
        for scan in (run, lax.scan)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
