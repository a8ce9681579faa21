"""Scans over time with an associative operation: `h' = A h + b`, and `max(h + a, b)`.

Elements of a scan stand for stretches of steps. Nothing is divided, and a factor of
zero forgets whatever came before it, infinities among that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax


def affine(A: Sequence, b: Sequence, start: Sequence, reverse: bool) -> list:
    """The values after each step of n numbers that are coupled.

    Args:
      A: n rows of n arrays each, `[T, ...]` with axes of size 1 where they are the
        same all along.
      b: n arrays `[T, ...]`.
      start: n arrays `[...]`, the values before the first step.
      reverse: whether the last step comes first.
    """
    n = len(b)
    rows = [list(A[i * n : (i + 1) * n]) for i in range(n)]
    first = -1 if reverse else 0
    begun = [
        _plus(_dot([a[first] for a in row], start), b_i[first])
        for row, b_i in zip(rows, b, strict=True)
    ]
    b = [_with_first(b_i, one, reverse) for b_i, one in zip(b, begun, strict=True)]
    if n == 1:
        _, h = _scan(_next, (*rows[0], *b), reverse)
        return [h]
    elements = (*(a for row in rows for a in row), *b)
    found = _scan(lambda x, y: _next_block(n, x, y), elements, reverse)
    return list(found[n * n :])


def sums(b, start, reverse: bool):
    """The values after each step of `h' = h + b`."""
    first = (b[-1] if reverse else b[0]) + start
    return lax.cumsum(_with_first(b, first, reverse), 0, reverse)


def largest(a, b, start, reverse: bool):
    """The values after each step of `h' = max(h + a, b)`."""
    first = -1 if reverse else 0
    begun = jnp.maximum(start + a[first], b[first])
    elements = a, _with_first(b, begun, reverse)
    return _scan(_next_largest, elements, reverse)[1]


def before(after, start, reverse: bool):
    """The values before each step, of those after each."""
    start = jnp.expand_dims(start, 0)
    parts = [after[1:], start] if reverse else [start, after[:-1]]
    return lax.concatenate(parts, 0)


def _scan(combine: Callable, elements: Sequence, reverse: bool):
    length = max(e.shape[0] for e in elements)
    elements = [jnp.broadcast_to(e, (length, *e.shape[1:])) for e in elements]
    return lax.associative_scan(combine, tuple(elements), reverse=reverse)


def _with_first(b, value, reverse: bool):
    """All steps, of which the first has another value."""
    shape = jnp.broadcast_shapes(b.shape[1:], value.shape)
    b = jnp.broadcast_to(b, (b.shape[0], *shape))
    at = b.shape[0] - 1 if reverse else 0
    here = lax.broadcasted_iota("int32", (b.shape[0], *(1 for _ in shape)), 0) == at
    return jnp.where(here, value, b)


def _next(early, late):
    (a, b), (A, B) = early, late
    return _times(A, a), _plus(_times(A, b), B)


def _next_block(n, early, late):
    a = [early[i * n : (i + 1) * n] for i in range(n + 1)]
    A = [late[i * n : (i + 1) * n] for i in range(n + 1)]
    columns = list(zip(*a[:n], strict=True))
    products = [_dot(row, column) for row in A[:n] for column in columns]
    sums = [_plus(_dot(row, a[n]), B) for row, B in zip(A[:n], A[n], strict=True)]
    return (*products, *sums)


def _next_largest(early, late):
    (a, b), (A, B) = early, late
    return a + A, jnp.maximum(b + A, B)


def _dot(row, column):
    terms = [_times(x, y) for x, y in zip(row, column, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _plus(a, b):
    return a + b


def _times(factor, value):
    """A product in which a factor of zero makes zero of anything."""
    return jnp.where(factor == 0, 0, factor * value).astype(value.dtype)
