"""Steps that once gave wrong values in parallel over time, or by products of chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.planner.parallel.memories import memories

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


def same_as_lax_scan(step, init, xs, name, **tolerance):
    wanted = lax.scan(step, init, xs)
    got = scanrnn.scan(step, init, xs, implementation=name)
    for a, b in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("bad", [jnp.inf, jnp.nan])
@pytest.mark.parametrize("join", [jnp.maximum, jnp.logaddexp])
def test_reset_of_a_maximum_removes_what_is_not_finite(join, bad):
    def step(h, x):
        value, reset = x
        h = jnp.where(reset, 0.0, join(h + 1, value))
        return h, h

    xs = jnp.array([1.0, bad, *range(9)]), jnp.arange(11) == 3
    same_as_lax_scan(step, jnp.asarray(0.0), xs, "associative", rtol=1e-12)


@pytest.mark.parametrize("join", [jnp.maximum, jnp.logaddexp])
def test_inputs_of_minus_infinity_keep_nan(join):
    """They are no resets: minus infinity plus NaN is NaN."""

    def step(h, x):
        h = join(h + x[0], x[1])
        return h, h

    xs = jnp.array([1.0, -jnp.inf, 0.0, 1.0, 2.0]), jnp.array([jnp.nan, 1, 2, 0, 5])
    same_as_lax_scan(step, jnp.asarray(0.0), xs, "associative", rtol=1e-12)


def test_maximum_after_an_infinite_input_is_that_of_lax_scan():
    def step(h, x):
        h = jnp.maximum(h + x[0], x[1])
        return h, h

    xs = jnp.array([1.0, jnp.inf, 2.0, 1.0, 3.0]), jnp.arange(5.0)
    same_as_lax_scan(step, jnp.asarray(0.0), xs, "associative", rtol=1e-12)


def test_keys_that_draw_others_at_once_draw_as_in_lax_scan():
    def step(S, x):
        k, key = x
        S = 0.9 * S + jnp.outer(k, jax.random.normal(key, (D,)))
        return S, k @ S

    keys = jax.random.split(jax.random.key(0, impl="rbg"), T)
    init, xs = jnp.zeros((D, D)), (jnp.ones((T, D)), keys)
    same_as_lax_scan(step, init, xs, "associative", rtol=1e-9)
    with pytest.raises(ValueError, match="keys draw other random numbers"):
        scanrnn.plan(step, init, xs, implementation="chunkwise")


def held_and_read(S, x):
    q, k, v, counts = x
    new = S + jnp.outer(k, v - k @ S)
    S = jnp.where(counts, new, S)
    return S, q @ S


def controller(carry, x):
    S, h = carry
    S = 0.9 * S + jnp.outer(x, x)
    h = jnp.tanh(h + h @ S)
    return (S, h), h


def kept_twice(carry, x):
    S = 0.9 * carry[0] + jnp.outer(x, x)
    return (S, S), x @ S


MEMORY, ROWS_OF = jnp.zeros((D, D)), jnp.ones((T, D)) / D
NO_MEMORIES = {
    "reads_what_is_held": (
        held_and_read,
        MEMORY,
        (ROWS_OF, ROWS_OF, ROWS_OF, jnp.arange(T) % 3 != 1),
        "does not count",
    ),
    "query_made_of_a_read": (
        controller,
        (MEMORY, jnp.ones(D)),
        ROWS_OF,
        "a query depends on what a step reads of it",
    ),
    "two_leaves": (kept_twice, (MEMORY, MEMORY), ROWS_OF, "output of each step"),
    "never_read": (
        lambda S, x: (0.9 * S + jnp.outer(x, x), x),
        MEMORY,
        ROWS_OF,
        "nothing reads it",
    ),
}


@pytest.mark.parametrize("name", NO_MEMORIES)
def test_step_that_is_no_memory_is_refused_and_runs_in_loops(name):
    step, init, xs, words = NO_MEMORIES[name]
    with pytest.raises(ValueError, match=words):
        scanrnn.plan(step, init, xs, implementation="chunkwise")
    same_as_lax_scan(step, init, xs, None, rtol=1e-9, atol=1e-12)


def test_choice_by_an_index_that_is_broadcast_equals_lax_scan():
    def step(h, x):
        which, value = x
        which = jnp.broadcast_to(which[:, None], h.shape)
        h = lax.select_n(which, h, 0.5 * h, value)
        return h, h

    xs = jnp.arange(14).reshape(7, 2) % 3, jnp.ones((7, 2, 3))
    same_as_lax_scan(step, jnp.ones((2, 3)), xs, "associative", rtol=1e-12)


@pytest.mark.parametrize("first", ["float32", "float64"])
def test_coupled_leaves_of_two_dtypes_equal_lax_scan(first):
    second = "float64" if first == "float32" else "float32"

    def step(carry, x):
        v, p = carry
        new = v - (0.1 * p).astype(first) + x.astype(first)
        return (new, p + (0.2 * v).astype(second)), p

    init = jnp.ones(3, first), jnp.ones(3, second)
    same_as_lax_scan(step, init, jnp.ones((7, 3)), "associative", rtol=1e-5)


def test_reshape_without_elements_is_planned():
    def step(h, x):
        return h.reshape(3, 0).reshape(0) + x, h

    init, xs = jnp.zeros(0), jnp.zeros((4, 0))
    same_as_lax_scan(step, init, xs, None)


def test_hessian_of_a_delta_rule_equals_that_of_lax_scan():
    def loss(scale, name):
        def step(S, x):
            new = 0.9 * S + jnp.outer(scale * x, jnp.sin(x) - x @ S)
            return new, x @ new

        xs = jnp.linspace(-1, 1, 12 * 4).reshape(12, 4)
        options = {} if name is None else {"implementation": name}
        scan = lax.scan if name is None else scanrnn.scan
        return jnp.sum(jnp.sin(scan(step, jnp.zeros((4, 4)), xs, **options)[1]))

    found = (jax.hessian(loss)(jnp.ones(4), name) for name in (None, "chunkwise"))
    np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-10)
