"""Scans over time with an associative operation: `h' = A h + b`, and like it.

An element of a scan stands for several steps in a row. There is no division. A factor
of zero forgets all that came before it, even an infinity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax

from scanrnn.planner.rows import Rows


def affine(A: Sequence, b: Sequence, start: Sequence, rows: Rows) -> list:
    """The values after each step of `h' = A h + b`, where h has n coupled numbers.

    An array may have size 1 along an axis (also that of time) where it is constant.

    Args:
      A: n rows of n arrays each, one row after the other, `[T, ...]`.
      b: n arrays `[T, ...]`.
      start: n arrays `[...]`, the values before the first step.
      rows: where the rows of the steps lie.

    Returns:
      n arrays `[T, ...]`.
    """
    times, factors, added, h = _operands(A, b, start)
    begun = times(_at(factors, rows.first), h) + _at(added, rows.first)
    return _apart(_scanned(times, factors, added, begun, rows), len(b))


def entered(
    A: Sequence, b: Sequence, d: Sequence, start: Sequence, rows: Rows
) -> tuple[list, list]:
    """The sums `u = h + d` at each step, where `h' = A u + b`.

    The scan is that of `u' = A u + (b + d')`, where d' is the d of the next step. So
    neither h nor `A d` is an array of all rows.

    Args:
      A: as in `affine`.
      b: as in `affine`.
      d: n arrays `[T, ...]`.
      start: n arrays `[...]`, the h before the first step.
      rows: where the rows of the steps lie.

    Returns:
      n arrays `[T, ...]` of the sums, and n arrays `[1, ...]`, the h after all rows.
    """
    times, factors, added, h = _operands(A, b, start)
    ahead, last = _matrices(d, len(b), 1), rows.last
    begun = h + _at(ahead, rows.first)
    later = _later(factors, rows), ahead + _later(added, rows)
    u = _scanned(times, *later, begun, rows)
    end = times(_at(factors, last), _at(u, last)) + _at(added, last)
    return _apart(u, len(b)), _apart(end, len(b))


def _operands(A, b, start) -> tuple:
    """The product of n coupled numbers; and A, b and start as its operands."""
    n, rows = len(b), [jnp.expand_dims(s, 0) for s in start]
    operands = _matrices(A, n, n), _matrices(b, n, 1), _matrices(rows, n, 1)
    return (_times if n == 1 else _product), *operands


def _matrices(arrays: Sequence, n: int, m: int):
    """Join arrays `[T, ...]` to one array of matrices, `[T, n, m, ...]`, if n > 1."""
    if n == 1:
        return arrays[0]
    array = jnp.stack(jnp.broadcast_arrays(*arrays), 1)
    return array.reshape(len(array), n, m, *array.shape[2:])


def _apart(h, n: int) -> list:
    """The n coupled numbers, each an array of its own."""
    return [h] if n == 1 else [h[:, i, 0] for i in range(n)]


def _scanned(times: Callable, factors, added, begun, rows: Rows):
    """The values after each step of `h' = A h + b`, where `times` is the product.

    Those after the first step are given: `begun`, `[1, ...]`.
    """
    added = _with_first(added, begun, rows)
    if len(factors) == 1:
        ordered = lax.rev(added, [0]) if rows.reverse else added
        found = _of_one_factor(times, factors, ordered)
        return lax.rev(found, [0]) if rows.reverse else found

    def combine(early, late):
        (a, b), (A, B) = early, late
        return times(A, a), times(A, b) + B

    return _scan(combine, (factors, added), rows)[1]


def _of_one_factor(times: Callable, factor, b):
    """The values of `h' = A h + b` from zero on, with one A, `[1, ...]`, for all rows.

    The tree is that of `lax.associative_scan`. But the factor of 2, 4, 8, ... steps is
    a power of A, and not an array of all rows.
    """
    if len(b) < 2:
        return b
    early = lax.slice_in_dim(b, 0, len(b) - 1, 2)
    late = lax.slice_in_dim(b, 1, len(b), 2)
    odd = _of_one_factor(times, times(factor, factor), times(factor, early) + late)
    rest = lax.slice_in_dim(b, 2, len(b), 2)
    even = times(factor, odd[: len(rest)]) + rest
    return _in_turns(lax.concatenate([b[:1], even], 0), odd)


def _in_turns(even, odd):
    """The rows of two arrays in turns, first one of `even`."""
    size = len(even) + len(odd)

    def spread(array, first):
        after = size - first - (2 * len(array) - 1)
        ends = [(first, after, 1), *[(0, 0, 0)] * (array.ndim - 1)]
        return lax.pad(array, jnp.zeros((), array.dtype), ends)

    return spread(even, 0) + spread(odd, 1)


def sums(b, start, rows: Rows):
    """The values after each step of `h' = h + b`."""
    b = _with_first(b, _at(b, rows.first) + start, rows)
    return lax.cumsum(b, 0, rows.reverse)


def joined(join: Callable, a, b, start, rows: Rows):
    """The values after each step of `h' = join(h + a, b)`: join is max or logaddexp."""
    begun = join(start + _at(a, rows.first), _at(b, rows.first))

    def combine(early, late):
        (a, b), (A, B) = early, late
        return a + A, join(b + A, B)

    return _scan(combine, (a, _with_first(b, begun, rows)), rows)[1]


def before(after, start, rows: Rows):
    """The values before each step, given the values after each step."""
    start = jnp.expand_dims(start, 0)
    parts = [after[1:], start] if rows.reverse else [start, after[:-1]]
    return lax.concatenate(parts, 0)


def _scan(combine: Callable, elements: Sequence, rows: Rows):
    elements = [jnp.broadcast_to(e, (rows.length, *e.shape[1:])) for e in elements]
    return lax.associative_scan(combine, tuple(elements), reverse=rows.reverse)


def _at(array, step: int):
    """The values at a step, `[1, ...]`."""
    return array if len(array) == 1 else lax.slice_in_dim(array, step, step + 1)


def _later(array, rows: Rows):
    """The array one step later. Zeros come in first, unless it is constant."""
    if len(array) == 1:
        return array
    ends = (-1, 1, 0) if rows.reverse else (1, -1, 0)
    zero = jnp.zeros((), array.dtype)
    return lax.pad(array, zero, [ends, *[(0, 0, 0)] * (array.ndim - 1)])


def _with_first(b, value, rows: Rows):
    """The array `b` for all steps, with another value `[1, ...]` at the first step."""
    shape = jnp.broadcast_shapes(b.shape[1:], value.shape[1:])
    sizes = (rows.length, *(1 for _ in shape))
    here = lax.broadcasted_iota("int32", sizes, 0) == rows.first
    return jnp.where(here, value, jnp.broadcast_to(b, (rows.length, *shape)))


def _product(A, B):
    """Multiply small matrices, `[T, n, n, ...]` by `[T, n, m, ...]`."""
    terms = (_times(A[:, :, k, None], B[:, None, k]) for k in range(A.shape[1]))
    return functools.reduce(jnp.add, terms)


def _times(factor, value):
    """A product that is zero wherever the factor is zero, even times an infinity."""
    return jnp.where(factor == 0, 0, factor * value).astype(value.dtype)
