"""The operation of a scan over time: it joins two steps to one, and runs one.

Factors, values and addends of a step `h' = A h + b` are lists of arrays `[T, ...]`. An
array may have size 1 along an axis, also that of time, where it is constant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from scanrnn.executors.parallel.zero_product import times


class Operation(NamedTuple):
    """How a scan joins two steps in a row, and what a step does.

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
AFFINE = Operation(_in_turn, _stepped)


def _multiplied(early: Sequence, late: Sequence) -> list:
    """The factor of two steps in a row, of arrays of matrices `[T, n, n, ...]`."""
    (a,), (b,) = late, early
    return [times(a[:, :, :, None], b[:, None]).sum(2, dtype=b.dtype)]


def _applied(A: Sequence, h: Sequence, b: Sequence) -> list:
    """The values after a step, of arrays of vectors `[T, n, ...]`."""
    (a,), (value,), (added,) = A, h, b
    return [times(a, value[:, None]).sum(2, dtype=value.dtype) + added]


MATRICES = Operation(_multiplied, _applied)


def _product(A: Sequence, B: Sequence) -> list:
    """Multiply matrices of arrays, listed row after row; A is square."""
    n = math.isqrt(len(A))
    m = len(B) // n

    def entry(i, j):
        terms = (times(A[i * n + k], B[k * m + j]) for k in range(n))
        return functools.reduce(jnp.add, terms)

    return [entry(i, j) for i in range(n) for j in range(m)]
