"""Exchange parts between programs that run side by side, inside a kernel for a GPU.

At each exchange every program stores its part in an array that the others read, and
waits until all slices of the same examples have stored theirs. So these must run at the
same time: there are at most as many slices as multiprocessors, of the plan's machine
and of the GPU that is here. If one is missing nevertheless (another kernel holds its
place, say), the others stop waiting after a while, and all that they make from then on
is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import JaxprEqn

from scanrnn.executors.gpu.slice_products import Sizes, reduced
from scanrnn.executors.kernels.slice_ops import product_p
from scanrnn.planner.ir import ops
from scanrnn.planner.passes.wide_sums import wide

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


class ThroughMemory:
    """Exchanges through the memory of a GPU: an `Exchange`, inside a kernel."""

    def __init__(
        self, refs: Sequence, slices: int, step: Any, exchanges: int, examples: int
    ):
        """The exchanges of one step.

        Args:
          refs: the arrays of `buffers`.
          slices: the number of slices.
          step: how many steps were before this one.
          exchanges: the exchanges of a step.
          examples: the examples of a program.
        """
        *arrays, self._counter = refs
        self._array, self._passed, self._divided = iter(arrays), 0, 0
        self._slices, self._examples = slices, examples
        self._step, self._exchanges = step, exchanges
        self._slice, self._block = pl.program_id(0), pl.program_id(1)
        self._first = self._block * examples
        # Double buffering: which of both arrays of an exchange this step uses.
        self._buffer = step % 2
        self.stopped: Any = False

    def gathered(self, parts: Sequence, sizes: Sizes) -> Callable:
        """As `Exchange` says."""
        ref, width = next(self._array), parts[0].shape[1]
        own = pl.ds(self._slice * width, width)
        for j, part in enumerate(parts):
            ref[self._buffer, j, pl.ds(self._first, self._examples), own] = part
        self._all_come()
        column = lax.iota("int32", sizes.columns)
        if sizes.split > 1:
            operand = jnp.zeros_like(column) + self._slice % sizes.split
        else:
            operand = column // self._examples % sizes.operands
        example = self._first + column % self._examples

        def read(start, size):
            return _load(ref.at[self._buffer, operand, example, pl.ds(start, size)])

        return read

    def tiles(self, array, sizes: Sizes) -> Callable:
        """As `Exchange` says. Triton has no slices, so they go through memory."""
        from jax.experimental.pallas import triton

        ref = next(self._array)
        ref[self._block, self._slice] = array
        if sizes.split > 1:
            self._divided += 1
            team = self._divided, self._block, self._slice // sizes.split
            self._wait(team, (self._step + 1) * sizes.split)
        else:
            # All threads of this program have stored.
            triton.debug_barrier()

        def tile(operand, gate):
            source, row, column = sizes.place(self._slice, operand, gate)
            rows = pl.ds(row, sizes.features)
            columns = pl.ds(column, self._examples)
            return _load(ref.at[self._block, source, rows, columns])

        return tile

    def reduced(self, part, name: str) -> Any:
        """As `Exchange` says."""
        ref, examples = next(self._array), pl.ds(self._first, self._examples)
        ref[self._buffer, 0, examples, pl.ds(self._slice, 1)] = part
        self._all_come()
        shape = self._examples, 1 << (self._slices - 1).bit_length()
        example, column = (lax.broadcasted_iota("int32", shape, i) for i in (0, 1))
        place = self._buffer, 0, self._first + example, column % self._slices
        found = _load(ref.at[place])
        # Beyond the last slice the first ones come again. Only a sum counts them.
        if name == "reduce_sum" and shape[1] > self._slices:
            found = jnp.where(column < self._slices, found, 0.0)
        return reduced(name, found)

    def _all_come(self) -> None:
        """Wait until the parts of all slices are stored."""
        self._passed += 1
        come = self._step * self._exchanges + self._passed
        self._wait((0, self._block, 0), come * self._slices)

    def _wait(self, place, goal) -> None:
        """Come to an exchange, and wait for a count.

        A program that has stopped comes to no other exchange, and does not wait: who
        needs what it makes must stop, too.
        """
        from jax.experimental.pallas import triton

        add, stopped = triton.atomic_add, jnp.int32(self.stopped)
        # All threads of this program have stored. Atomic operations order memory: who
        # reads the count afterwards sees what was stored.
        triton.debug_barrier()
        add(self._counter, place, 1 - stopped)
        count, _ = lax.while_loop(
            lambda state: (state[0] < goal) & (state[1] < MOST_READS),
            lambda state: (add(self._counter, place, jnp.int32(0)), state[1] + 1),
            (jnp.int32(0), stopped * MOST_READS),
        )
        self.stopped |= (count < goal) | (count >= STOPPED)

        @pl.when(self.stopped)
        def _stop():
            # Those who wait here, and all slices at their next exchange.
            for at in (place, (0, self._block, 0)):
                triton.atomic_max(self._counter, at, jnp.int32(STOPPED))

        # No thread reads before the count was read.
        triton.debug_barrier()


def _load(ref):
    """Read what other threads have stored: not from a cache of this multiprocessor."""
    from jax.experimental.pallas import triton

    return triton.load(ref, volatile=True)
