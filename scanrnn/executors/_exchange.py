"""Exchange parts between programs that run side by side, inside a kernel for a GPU.

At each exchange every program stores its part in an array that the others read, and
waits until all slices of the same examples have stored theirs. So these must run at the
same time: there are at most as many slices as multiprocessors. If one is missing
nevertheless (another kernel holds its place, say), the others stop waiting after a
while, and all products and reductions from then on are NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import JaxprEqn

from scanrnn.executors._slice_ops import product_p
from scanrnn.executors._slice_products import Sizes, total, unless
from scanrnn.planner import ops
from scanrnn.planner.wide_sums import wide

# How often a program reads the counter before it stops waiting: for half a minute, if a
# read takes a microsecond.
MOST_READS = 2**25
# A count that is never reached: some program has stopped waiting.
STOPPED = 2**30


def buffers(eqns: Sequence[JaxprEqn], slices: int, blocks: int) -> list:
    """The types of the arrays through which a kernel exchanges.

    An exchange has an array of all parts, twice: a program may be one exchange ahead,
    and must not store where another still reads. A product that is read in tiles has
    another array: once, because an exchange of all slices lies between two of its
    steps. The last array counts the programs that have come to an exchange: to those of
    all slices, and for each product whose operands are divided, to those of its slices.

    Args:
      eqns: the exchanges of a step.
      slices: the number of slices.
      blocks: the number of groups of examples.
    """
    found = []
    for eqn in eqns:
        first = ops.aval(eqn.invars[0])
        examples, width = first.shape
        sizes = Sizes.of(eqn) if eqn.primitive is product_p else None
        operands = sizes.operands if sizes else 1
        shape = 2, operands, blocks * examples, slices * width
        found.append(jax.ShapeDtypeStruct(shape, first.dtype))
        if sizes and not sizes.is_one_tile:
            shape = blocks, slices, sizes.rows, sizes.columns
            found.append(jax.ShapeDtypeStruct(shape, wide(eqn.params["dtype"])))
    divided = sum(eqn.params.get("split", 1) > 1 for eqn in eqns)
    return [*found, jax.ShapeDtypeStruct((1 + divided, blocks, slices), jnp.int32)]


@dataclasses.dataclass
class ThroughMemory:
    """Exchanges through the memory of a GPU: an `Exchange`, inside a kernel.

    Attributes:
      refs: the arrays of `buffers`.
      slices: the number of slices.
      step: how many steps were before this one.
      exchanges: the exchanges of a step.
      examples: the examples of a program.
    """

    refs: Sequence
    slices: int
    step: Any
    exchanges: int
    examples: int

    def __post_init__(self):
        *arrays, self.counter = self.refs
        self.array, self.passed, self.divided = iter(arrays), 0, 0
        self.slice, self.block = pl.program_id(0), pl.program_id(1)
        self.first = self.block * self.examples
        # Which of both arrays of an exchange has its turn.
        self.turn = self.step % 2

    def gathered(self, parts: Sequence, sizes: Sizes) -> tuple[Callable, Any]:
        """As `Exchange` says."""
        ref, width = next(self.array), parts[0].shape[1]
        own = pl.ds(self.slice * width, width)
        for j, part in enumerate(parts):
            ref[self.turn, j, pl.ds(self.first, self.examples), own] = part
        stopped = self._all_come()
        column = lax.iota("int32", sizes.columns)
        if sizes.split > 1:
            operand = jnp.zeros_like(column) + self.slice % sizes.split
        else:
            operand = column // self.examples % sizes.operands
        example = self.first + column % self.examples

        def read(start, size):
            return _load(ref.at[self.turn, operand, example, pl.ds(start, size)])

        return read, stopped

    def tiles(self, array, sizes: Sizes) -> tuple[Callable, Any]:
        """As `Exchange` says. Triton has no slices, so they go through memory."""
        from jax.experimental.pallas import triton

        ref = next(self.array)
        ref[self.block, self.slice] = array
        if sizes.split > 1:
            self.divided += 1
            team = self.divided, self.block, self.slice // sizes.split
            stopped = self._wait(team, (self.step + 1) * sizes.split)
        else:
            # All threads of this program have stored.
            triton.debug_barrier()
            stopped = False

        def tile(operand, gate):
            source, row, column = sizes.place(self.slice, operand, gate)
            rows = pl.ds(row, sizes.features)
            columns = pl.ds(column, self.examples)
            return _load(ref.at[self.block, source, rows, columns])

        return tile, stopped

    def reduced(self, part, name: str) -> Any:
        """As `Exchange` says."""
        ref, examples = next(self.array), pl.ds(self.first, self.examples)
        ref[self.turn, 0, examples, pl.ds(self.slice, 1)] = part
        stopped = self._all_come()
        shape = self.examples, 1 << (self.slices - 1).bit_length()
        example, column = (lax.broadcasted_iota("int32", shape, i) for i in (0, 1))
        place = self.turn, 0, self.first + example, column % self.slices
        found = _load(ref.at[place])
        # Beyond the last slice the first ones come again.
        neutral = {"reduce_sum": 0.0, "reduce_max": -jnp.inf, "reduce_min": jnp.inf}
        if shape[1] > self.slices:
            found = jnp.where(column < self.slices, found, neutral[name])
        return unless(stopped, total(name, found))

    def _all_come(self):
        """Wait until the parts of all slices are stored; whether one has stopped."""
        self.passed += 1
        come = self.step * self.exchanges + self.passed
        return self._wait((0, self.block, 0), come * self.slices)

    def _wait(self, place, goal):
        """Come to an exchange, and wait for a count; whether a program has stopped."""
        from jax.experimental.pallas import triton

        add = triton.atomic_add
        # All threads of this program have stored. Atomic operations order memory: who
        # reads the count afterwards sees what was stored.
        triton.debug_barrier()
        add(self.counter, place, jnp.int32(1))
        count, _ = lax.while_loop(
            lambda state: (state[0] < goal) & (state[1] < MOST_READS),
            lambda state: (add(self.counter, place, jnp.int32(0)), state[1] + 1),
            (jnp.int32(0), jnp.int32(0)),
        )

        @pl.when(count < goal)
        def _stop():
            triton.atomic_max(self.counter, place, jnp.int32(STOPPED))

        # No thread reads before the count was read.
        triton.debug_barrier()
        return (count < goal) | (count >= STOPPED)


def _load(ref):
    """Read what other threads have stored: not from a cache of this multiprocessor."""
    from jax.experimental.pallas import triton

    return triton.load(ref, volatile=True)
