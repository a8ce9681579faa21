"""Products of a slice of the features, whose operands all slices exchange."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from scanrnn.executors.gpu.block_products import by_columns
from scanrnn.executors.gpu.slice_costs import columns
from scanrnn.executors.gpu.view import keeping_nan
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.rows import spans
from scanrnn.planner.passes.wide_sums import wide

# An operand of at most WHOLE bytes is read at once. A larger one is read in parts of
# PART bytes, of which AHEAD bytes are read before the first product. On an H200 a step
# of an LSTM (64, 1024) in bfloat16 took 6.1 microseconds with all parts read ahead, and
# 9.2 with none. With 32 KB ahead in place of 64 KB, (64, 512) took 5.1 and not 5.8.
WHOLE, PART, AHEAD = 16 * 2**10, 8 * 2**10, 32 * 2**10


class Sizes(NamedTuple):
    """The sizes of a product of slices.

    Attributes:
      operands: the number of arrays on the left of the product, side by side.
      gates: the number of gates that it makes.
      features: the features of a slice of a gate.
      examples: the examples of a program.
      rows: the rows of the matrix of a slice.
      depth: its columns: all features of an operand.
      itemsize: the bytes of a number of an operand.
      split: between how many slices the operands are divided.
    """

    operands: int
    gates: int
    features: int
    examples: int
    rows: int
    depth: int
    itemsize: int
    split: int

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Sizes:
        """The sizes of an equation."""
        *parts, matrix = map(ops.aval, eqn.invars)
        gates, features = eqn.params["gates"], eqn.params["features"]
        examples, itemsize = parts[0].shape[0], parts[0].dtype.itemsize
        rows, depth = matrix.shape
        own = gates, features, examples, rows, depth, itemsize
        return cls(len(parts), *own, eqn.params["split"])

    @property
    def columns(self) -> int:
        """The examples of the operands that a program reads."""
        return columns(self.operands, self.examples, self.split)

    def place(self, own: Any, operand: int, gate: int) -> tuple:
        """Where a product has what an operand adds to a gate of the slice `own`.

        Returns the slice that computes it, the first row and the first column.
        """
        if self.split > 1:
            member = own % self.split
            row = (member * self.gates + gate) * self.features
            return own - member + operand, row, 0
        row = (operand * self.gates + gate) * self.features
        return own, row, operand * self.examples

    @property
    def is_one_tile(self) -> bool:
        """Whether the product is one gate of one operand, and nothing else."""
        return (self.rows, self.columns) == (self.features, self.examples)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The parts of the depth that are multiplied at once: starts and sizes."""
        row = self.columns * self.itemsize
        most = max(16, (WHOLE if row * self.depth <= WHOLE else PART) // row)
        size = min(self.depth & -self.depth, 1 << (most.bit_length() - 1))
        return spans([size] * (self.depth // size))

    @property
    def ahead(self) -> int:
        """The number of parts that are read ahead."""
        _, size = self.parts[0]
        return max(1, AHEAD // (self.columns * self.itemsize * size))


class Exchange(Protocol):
    """The exchanges of one program in one step, in their order.

    Attributes:
      stopped: whether some program has stopped waiting, so that what this one has read
        may be wrong. False if that cannot be.
    """

    stopped: Any

    def gathered(self, parts: Sequence, sizes: Sizes) -> Callable:
        """Exchange a slice of each operand of a product.

        Returns `read(start, size)`: some features of the operands that this program
        multiplies `[columns, size]`.
        """
        ...

    def tiles(self, array, sizes: Sizes) -> Callable:
        """Store a product `[rows, columns]`, for the slices that need parts of it.

        Returns `tile(operand, gate)`: what an operand adds to this slice of a gate
        `[features, examples]`.
        """
        ...

    def reduced(self, part, name: str) -> Any:
        """Reduce one number for each example and slice, over the slices."""
        ...


def product(exchange: Exchange, eqn: JaxprEqn, parts: Sequence, matrix: Sequence):
    """A slice of each gate.

    A matrix has rows for each gate of each operand. One product multiplies all rows by
    all operands. Only what an operand and rows of its own give is used, and added. If
    the operands are divided between slices, a matrix has rows for each gate of each of
    these slices, and all results are used.

    Args:
      exchange: the exchanges of the step.
      eqn: the product.
      parts: this slice of each operand.
      matrix: the matrix of this slice, in parts of its depth.
    """
    sizes, dtype = Sizes.of(eqn), eqn.params["dtype"]
    precision = eqn.params["precision"]
    read = exchange.gathered(parts, sizes)
    places, count = sizes.parts, sizes.ahead
    ahead = [read(*place) for place in places[:count]]
    whole = None
    for k, part in enumerate(matrix):
        ahead += [read(*place) for place in places[k + count : k + count + 1]]
        made = by_columns(part, ahead[k], precision, wide(dtype))
        # Added now: an operand stays in the fast memory until its product is read.
        whole = made if whole is None else whole + made
    assert whole is not None
    if sizes.is_one_tile:
        return [whole.T.astype(dtype)]
    tile = exchange.tiles(whole, sizes)
    gates = [[tile(j, k) for j in range(len(parts))] for k in range(sizes.gates)]
    sums = [functools.reduce(jnp.add, tiles) for tiles in gates]
    return [made.T.astype(dtype) for made in sums]


def reduced(name: str, array):
    """The reduction over the last axis, which stays."""
    reduce = {"reduce_sum": jnp.sum, "reduce_max": jnp.max, "reduce_min": jnp.min}
    found = reduce[name](array, 1)
    if name != "reduce_sum":
        found = keeping_nan(found, array, (1,))
    return found[:, None]
