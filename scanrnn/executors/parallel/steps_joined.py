"""What a scan over time does with its steps: join two to one, and run one.

Factors, values and addends of a step `h' = A h + b` are lists of arrays `[T, ...]`. An
array may have size 1 along an axis, also that of time, where it is constant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Steps(NamedTuple):
    """How the steps of a scan are joined.

    Attributes:
      join: `join(early, late)`, the factors of two steps in a row.
      after: `after(A, h, b)`, the values after a step.
    """

    join: Callable
    after: Callable

    def as_one(self, early: tuple, late: tuple) -> tuple[list, list]:
        """Two steps in a row as one. A step is its factors and its addends."""
        (A, b), (C, d) = early, late
        return self.join(A, C), self.after(C, b, d)


def rows_of(arrays: Sequence, start: int, stop: int, stride: int = 1) -> list:
    """Some rows of arrays; all of an array that is constant in time."""
    return [
        a if len(a) == 1 else lax.slice_in_dim(a, start, stop, stride) for a in arrays
    ]


def _stepped(A: Sequence, h: Sequence, b: Sequence) -> list:
    """The values after a step: `A h + b`."""
    return [a + late for a, late in zip(_product(A, h), b, strict=True)]


def _in_turn(early: Sequence, late: Sequence) -> list:
    """The factor of two steps in a row."""
    return _product(late, early)


# n rows of n factors, one row after the other, and n values.
AFFINE = Steps(_in_turn, _stepped)


def _multiplied(early: Sequence, late: Sequence) -> list:
    """The factor of two steps in a row, of arrays of matrices `[T, n, n, ...]`."""
    (a,), (b,) = late, early
    return [_times(a[:, :, :, None], b[:, None]).sum(2, dtype=b.dtype)]


def _applied(A: Sequence, h: Sequence, b: Sequence) -> list:
    """The values after a step, of arrays of vectors `[T, n, ...]`."""
    (a,), (value,), (added,) = A, h, b
    return [_times(a, value[:, None]).sum(2, dtype=value.dtype) + added]


MATRICES = Steps(_multiplied, _applied)


def _product(A: Sequence, B: Sequence) -> list:
    """Multiply matrices of arrays, listed row after row; A is square."""
    n = math.isqrt(len(A))
    m = len(B) // n

    def entry(i, j):
        terms = (_times(A[i * n + k], B[k * m + j]) for k in range(n))
        return functools.reduce(jnp.add, terms)

    return [entry(i, j) for i in range(n) for j in range(m)]


@jax.custom_jvp
def _times(factor, value):
    """A product that is zero wherever one of them is zero, even times an infinity.

    A product of the factors of many steps may overflow where no value of the loop does.
    The function is linear in `value`, so that JAX can transpose it.
    """
    if jnp.issubdtype(factor.dtype, jnp.floating):
        # Twice multiplied by the largest number, a value is infinite unless it is zero.
        most = float(jnp.finfo(factor.dtype).max)
        product = jnp.clip(factor, -most, most) * value
        product = jnp.where(jnp.isinf(factor), product * most, product)
    else:
        product = factor * value
    return jnp.where(factor == 0, 0, product).astype(value.dtype)


@_times.defjvp
def _times_jvp(primals, tangents):
    """The derivative by a factor of zero is the value, if that is finite."""
    (factor, value), (d_factor, d_value) = primals, tangents
    lost = (factor == 0) & ~jnp.isfinite(value)
    known, d_known = (jnp.where(lost, 0, v) for v in (value, d_value))
    tangent = d_factor * known + factor * d_known
    return _times(factor, value), tangent.astype(value.dtype)
