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

    `A` has n rows of n arrays `[T, ...]`, `b` and the result have n such arrays. An
    array may have size 1 along an axis (also that of time) where it is constant. The
    values before the first step are n arrays `[...]`.
    """
    n = len(b)
    if n == 1:
        return [_scanned(_times, A[0], b[0], start[0], rows)]
    factors, added = _stacked(A, (n, n)), _stacked(b, (n, 1))
    h = jnp.stack(start).reshape(n, 1, *start[0].shape)
    h = _scanned(_product, factors, added, h, rows)
    return [h[:, i, 0] for i in range(n)]


def _scanned(times: Callable, factors, added, start, rows: Rows):
    """The values after each step of `h' = A h + b`, where `times` is the product."""
    begun = times(_first(factors, rows)[None], start[None])[0] + _first(added, rows)

    def combine(early, late):
        (a, b), (A, B) = early, late
        return times(A, a), times(A, b) + B

    return _scan(combine, (factors, _with_first(added, begun, rows)), rows)[1]


def sums(b, start, rows: Rows):
    """The values after each step of `h' = h + b`."""
    b = _with_first(b, _first(b, rows) + start, rows)
    return lax.cumsum(b, 0, rows.reverse)


def joined(join: Callable, a, b, start, rows: Rows):
    """The values after each step of `h' = join(h + a, b)`: join is max or logaddexp."""
    begun = join(start + _first(a, rows), _first(b, rows))

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


def _first(array, rows: Rows):
    return array[0 if len(array) == 1 else rows.first]


def _with_first(b, value, rows: Rows):
    """The array `b` for all steps, with another value at the first step."""
    shape = jnp.broadcast_shapes(b.shape[1:], value.shape)
    sizes = (rows.length, *(1 for _ in shape))
    here = lax.broadcasted_iota("int32", sizes, 0) == rows.first
    return jnp.where(here, value, jnp.broadcast_to(b, (rows.length, *shape)))


def _stacked(arrays: Sequence, shape: tuple[int, int]):
    """Join arrays `[T, ...]` to one array of matrices, `[T, *shape, ...]`."""
    array = jnp.stack(jnp.broadcast_arrays(*arrays), 1)
    return array.reshape(len(array), *shape, *array.shape[2:])


def _product(A, B):
    """Multiply small matrices, `[T, n, n, ...]` by `[T, n, m, ...]`."""
    terms = (_times(A[:, :, k, None], B[:, None, k]) for k in range(A.shape[1]))
    return functools.reduce(jnp.add, terms)


def _times(factor, value):
    """A product that is zero wherever the factor is zero, even times an infinity."""
    return jnp.where(factor == 0, 0, factor * value).astype(value.dtype)
