"""Scans over time with an associative operation: `h' = A h + b`, and like it.

An element of a scan stands for several steps in a row. There is no division. A factor
of zero forgets all that came before it, even an infinity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax


class Steps(NamedTuple):
    """The steps of a scan.

    Attributes:
      length: the number of steps.
      reverse: whether the last step comes first.
    """

    length: int
    reverse: bool = False

    @property
    def first(self) -> int:
        """The index of the step that comes first."""
        return self.length - 1 if self.reverse else 0

    @property
    def last(self) -> int:
        """The index of the step that comes last."""
        return 0 if self.reverse else self.length - 1


def affine(A: Sequence, b: Sequence, start: Sequence, steps: Steps) -> list:
    """The values after each step of `h' = A h + b`, where h has n coupled numbers.

    `A` has n rows of n arrays `[T, ...]`, `b` and the result have n such arrays. An
    array may have size 1 along an axis (also that of time) where it is constant. The
    values before the first step are n arrays `[...]`.
    """
    n = len(b)
    if n == 1:
        return [_scanned(_times, A[0], b[0], start[0], steps)]
    factors, added = _stacked(A, (n, n)), _stacked(b, (n, 1))
    h = jnp.stack(start).reshape(n, 1, *start[0].shape)
    h = _scanned(_product, factors, added, h, steps)
    return [h[:, i, 0] for i in range(n)]


def _scanned(times: Callable, factors, added, start, steps: Steps):
    """The values after each step of `h' = A h + b`, where `times` is the product."""
    begun = times(_first(factors, steps)[None], start[None])[0] + _first(added, steps)

    def combine(early, late):
        (a, b), (A, B) = early, late
        return times(A, a), times(A, b) + B

    return _scan(combine, (factors, _with_first(added, begun, steps)), steps)[1]


def sums(b, start, steps: Steps):
    """The values after each step of `h' = h + b`."""
    b = _with_first(b, _first(b, steps) + start, steps)
    return lax.cumsum(b, 0, steps.reverse)


def joined(join: Callable, a, b, start, steps: Steps):
    """The values after each step of `h' = join(h + a, b)`: join is max or logaddexp."""
    begun = join(start + _first(a, steps), _first(b, steps))

    def combine(early, late):
        (a, b), (A, B) = early, late
        return a + A, join(b + A, B)

    return _scan(combine, (a, _with_first(b, begun, steps)), steps)[1]


def before(after, start, steps: Steps):
    """The values before each step, given the values after each step."""
    start = jnp.expand_dims(start, 0)
    parts = [after[1:], start] if steps.reverse else [start, after[:-1]]
    return lax.concatenate(parts, 0)


def _scan(combine: Callable, elements: Sequence, steps: Steps):
    elements = [jnp.broadcast_to(e, (steps.length, *e.shape[1:])) for e in elements]
    return lax.associative_scan(combine, tuple(elements), reverse=steps.reverse)


def _first(array, steps: Steps):
    return array[0 if len(array) == 1 else steps.first]


def _with_first(b, value, steps: Steps):
    """The array `b` for all steps, with another value at the first step."""
    shape = jnp.broadcast_shapes(b.shape[1:], value.shape)
    sizes = (steps.length, *(1 for _ in shape))
    here = lax.broadcasted_iota("int32", sizes, 0) == steps.first
    return jnp.where(here, value, jnp.broadcast_to(b, (steps.length, *shape)))


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
