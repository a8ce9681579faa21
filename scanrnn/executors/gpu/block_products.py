"""Products of some examples by parts of a matrix, inside a kernel for a GPU.

In a product, the features are the rows of the tensor cores' tiles, and the examples
their columns: a tile has at least 16 rows, and 8 columns.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from scanrnn.executors.gpu.parts import Part
from scanrnn.planner.ir.rows import spans
from scanrnn.planner.passes.wide_sums import wide


class Matrix(NamedTuple):
    """A matrix in memory: an array, the index of the matrix in it, and loaded parts.

    It lies in memory with its columns first: in the order that the tensor cores read.
    """

    ref: Any
    head: tuple
    loaded: Mapping[Part, Any] = {}

    def part(self, part: Part):
        """Some columns, each with some rows."""
        if part in self.loaded:
            return self.loaded[part]
        at = (slice(start, start + size) for start, size in (part.columns, part.rows))
        return self.ref[(*self.head, *at)]


class Product(NamedTuple):
    """Columns of `left @ matrix`, computed when they are read."""

    left: list
    matrix: Matrix
    start: int
    size: int
    dtype: Any
    precision: Any

    def part(self, start: int, size: int) -> Product:
        """The same product by some of its columns."""
        return self._replace(start=self.start + start, size=size)

    def value(self):
        """The product, as an array."""
        columns, rows = (self.start, self.size), spans(a.shape[1] for a in self.left)
        by_part = functools.partial(
            by_columns, precision=self.precision, dtype=wide(self.dtype)
        )
        made = (
            by_part(self.matrix.part(Part(at, columns)), a).T
            for a, at in zip(self.left, rows, strict=True)
        )
        return functools.reduce(jnp.add, made).astype(self.dtype)


def by_columns(columns, rows, precision, dtype):
    """The products of each of some columns, and each of some rows.

    Triton multiplies one dtype: no factor is rounded for it.
    """
    if columns.dtype != rows.dtype:
        columns, rows = columns.astype(dtype), rows.astype(dtype)
    numbers = ((1,), (1,)), ((), ())
    return lax.dot_general(
        columns, rows, numbers, precision, preferred_element_type=dtype
    )


def in_registers(matrix):
    """The same matrix, as a result of the tensor cores.

    In half precision they hold a result as they read a left factor, so it stays where
    it is. Triton puts any other array into the fast memory, and reads it at each step.
    The product by ones on a diagonal is exact. There are two of them because Triton
    divides a result among warps by rows, as here, if another product reads it.
    """
    size = matrix.shape[1]
    at = [lax.broadcasted_iota("int32", (size, size), axis) for axis in (0, 1)]
    ones = (at[0] == at[1]).astype(matrix.dtype)
    for _ in range(2):
        made = by_columns(matrix, ones, None, jnp.float32)
        matrix = made.astype(matrix.dtype)
    return matrix
