"""Exchange parts between programs that run side by side, inside a kernel for a GPU.

At each exchange every program stores its part in an array that all of them read, and
waits until the others have stored theirs. All programs must run at the same time for
it, so there are at most as many as multiprocessors. If one is missing nevertheless
(another kernel holds its place, say), the others stop waiting after a while, and all
results from then on are NaN.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import JaxprEqn

from scanrnn.planner import ops
from scanrnn.planner.rows import spans
from scanrnn.planner.wide_sums import wide

# The bytes of an operand that a program reads at once; those of its parts if it has
# more; and those of the parts that it reads ahead of their products. On an H200 a step
# of an LSTM (64, 1024) in bfloat16 took 6.1 microseconds with all parts read ahead, and
# 9.2 with none. With 32 KB ahead in place of 64 KB, (64, 512) took 5.1 and not 5.8.
WHOLE, PART, AHEAD = 16 * 2**10, 8 * 2**10, 32 * 2**10
# How often a program looks whether the others have come: for about half a minute.
LOOKS = 2**25
# A count that is never reached: some program has stopped waiting.
STOPPED = 2**30


class Sizes(NamedTuple):
    """The sizes of an exchange of products.

    Attributes:
      joined: the number of arrays that are joined on the left.
      gates: the number of gates.
      features: the features of a slice of a gate.
      examples: the examples of a program.
      height: the rows of the matrix of a slice.
      length: their length: all features of one of the arrays on the left.
      bytes: the bytes of a number on the left.
    """

    joined: int
    gates: int
    features: int
    examples: int
    height: int
    length: int
    bytes: int

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Sizes:
        """The sizes of a product of slices."""
        *parts, matrix = map(ops.aval, eqn.invars)
        gates, features = eqn.params["gates"], eqn.params["features"]
        examples, size = parts[0].shape[0], parts[0].dtype.itemsize
        height, length = matrix.shape
        return cls(len(parts), gates, features, examples, height, length, size)

    @property
    def columns(self) -> int:
        """The examples of all arrays on the left, up to a power of two."""
        return (1 << (self.joined - 1).bit_length()) * self.examples

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The parts of the length that are multiplied at once: starts and sizes."""
        row = self.columns * self.bytes
        most = max(16, (WHOLE if row * self.length <= WHOLE else PART) // row)
        size = min(self.length & -self.length, 1 << (most.bit_length() - 1))
        return spans([size] * (self.length // size))

    @property
    def ahead(self) -> int:
        """The number of parts that are read ahead."""
        _, size = self.parts[0]
        return max(1, AHEAD // (self.columns * self.bytes * size))


class Exchange(Protocol):
    """One step's exchanges, of one program."""

    def gathered(self, at: int, parts: Sequence, sizes: Sizes) -> tuple[Callable, Any]:
        """Exchange parts.

        Returns a function that reads some features of all examples, and whether some
        program has stopped waiting.

        Args:
          at: the number of the exchange in the step.
          parts: this slice of each array on the left.
          sizes: the sizes of the product.
        """
        ...

    def tiles(self, at: int, array, sizes: Sizes) -> Callable:
        """Divide a product; the result reads some rows of one array on the left."""
        ...

    def reduced(self, at: int, part, name: str) -> Any:
        """The reduction of a number for each example and slice over the slices."""
        ...


def product(exchange: Exchange, at: int, eqn: JaxprEqn, parts: Sequence, matrix: list):
    """This slice of each gate of a product; `matrix` has the parts of its length."""
    sizes, dtype = Sizes.of(eqn), eqn.params["dtype"]
    multiplied = functools.partial(_multiplied, eqn.params["precision"], wide(dtype))
    read, stopped = exchange.gathered(at, parts, sizes)
    places, count = sizes.parts, sizes.ahead
    ahead = [read(*place) for place in places[:count]]
    whole = None
    for k, part in enumerate(matrix):
        ahead += [read(*place) for place in places[k + count : k + count + 1]]
        # Added at once: an operand stays in the fast memory until its product is read.
        made = multiplied(part, ahead[k])
        whole = made if whole is None else whole + made
    assert whole is not None
    whole = _unless(stopped, whole)
    if whole.shape == (sizes.features, sizes.examples):
        return [whole.T.astype(dtype)]
    tile = exchange.tiles(at, whole, sizes)
    gates = [
        [tile(j, (j * sizes.gates + gate) * sizes.features) for j in range(len(parts))]
        for gate in range(sizes.gates)
    ]
    return [functools.reduce(jnp.add, tiles).T.astype(dtype) for tiles in gates]


def _multiplied(precision, dtype, columns, rows):
    """The products of columns of a matrix and examples, as Triton has them."""
    if columns.dtype != rows.dtype:
        columns, rows = columns.astype(dtype), rows.astype(dtype)
    numbers = ((1,), (1,)), ((), ())
    return lax.dot_general(
        columns, rows, numbers, precision, preferred_element_type=dtype
    )


def total(name: str, array):
    """The reduction over the last axis, which stays."""
    reduce = {"reduce_sum": jnp.sum, "reduce_max": jnp.max, "reduce_min": jnp.min}
    return reduce[name](array, 1)[:, None]


@dataclasses.dataclass
class InMemory:
    """Exchanges through the memory of a GPU: an `Exchange`, inside a kernel.

    Two arrays take turns from step to step. So a program that is ahead stores where no
    other program reads any more.

    Attributes:
      refs: for each exchange, the array of all parts, and that of the program's own
        products; and last, how many programs have come to all exchanges so far.
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
        self.own, self.block = pl.program_id(0), pl.program_id(1)
        self.turn = self.step % 2
        self.first = self.block * self.examples

    def gathered(self, at: int, parts: Sequence, sizes: Sizes) -> tuple[Callable, Any]:
        """As `Exchange` says."""
        ref, width = self.refs[2 * at], parts[0].shape[1]
        mine = pl.ds(self.own * width, width)
        for j, part in enumerate(parts):
            ref[self.turn, j, pl.ds(self.first, self.examples), mine] = part
        stopped = self._wait(at)
        column = lax.iota("int32", sizes.columns)
        array = column // self.examples % sizes.joined
        example = self.first + column % self.examples

        def read(start, size):
            place = self.turn, array, example, pl.ds(start, size)
            return _load(ref.at[place])

        return read, stopped

    def tiles(self, at: int, array, sizes: Sizes) -> Callable:
        """As `Exchange` says. Triton has no slices, so they go through memory."""
        from jax.experimental.pallas import triton

        ref = self.refs[2 * at + 1]
        ref[self.block, self.own] = array
        triton.debug_barrier()

        def tile(j, start):
            rows, columns = (start, sizes.features), (j * self.examples, self.examples)
            place = self.block, self.own, pl.ds(*rows), pl.ds(*columns)
            return _load(ref.at[place])

        return tile

    def reduced(self, at: int, part, name: str) -> Any:
        """As `Exchange` says."""
        ref, examples = self.refs[2 * at], pl.ds(self.first, self.examples)
        ref[self.turn, 0, examples, pl.ds(self.own, 1)] = part
        stopped = self._wait(at)
        shape = self.examples, 1 << (self.slices - 1).bit_length()
        example, column = (lax.broadcasted_iota("int32", shape, i) for i in (0, 1))
        # Beyond the last slice there are others again, which must not be summed.
        place = self.turn, 0, self.first + example, column % self.slices
        found = _load(ref.at[place])
        neutral = {"reduce_sum": 0.0, "reduce_max": -jnp.inf, "reduce_min": jnp.inf}
        if shape[1] > self.slices:
            found = jnp.where(column < self.slices, found, neutral[name])
        return _unless(stopped, total(name, found))

    def _wait(self, at: int):
        """Wait until the parts of all programs are stored; whether one has stopped."""
        from jax.experimental.pallas import triton

        counter, add = self.refs[-1], triton.atomic_add
        goal = (self.step * self.exchanges + at + 1) * self.slices
        triton.debug_barrier()
        add(counter, (self.block,), jnp.int32(1))

        # An atomic read: what the others stored before they came is seen after it.
        def look(state):
            return add(counter, (self.block,), jnp.int32(0)), state[1] + 1

        count, _ = lax.while_loop(
            lambda state: (state[0] < goal) & (state[1] < LOOKS),
            look,
            (jnp.int32(0), jnp.int32(0)),
        )

        @pl.when(count < goal)
        def _stop():
            triton.atomic_max(counter, (self.block,), jnp.int32(STOPPED))

        triton.debug_barrier()
        return (count < goal) | (count >= STOPPED)


def _load(ref):
    """Read what other threads have stored: not from a cache of this multiprocessor."""
    from jax.experimental.pallas import triton

    return triton.load(ref, volatile=True)


def _unless(stopped, array):
    return jnp.where(stopped, jnp.asarray(jnp.nan, array.dtype), array)


def memory(eqns: Sequence[JaxprEqn], slices: int, blocks: int) -> list:
    """The types of the arrays through which a kernel exchanges."""
    found = []
    for eqn in eqns:
        first = ops.aval(eqn.invars[0])
        examples, width = first.shape
        joined, own = 1, (1,)
        if "gates" in eqn.params:
            sizes = Sizes.of(eqn)
            joined, own = sizes.joined, (sizes.height, sizes.columns)
        parts = 2, joined, blocks * examples, slices * width
        found.append(jax.ShapeDtypeStruct(parts, first.dtype))
        dtype = wide(eqn.params.get("dtype", first.dtype))
        found.append(jax.ShapeDtypeStruct((blocks, slices, *own), dtype))
    return [*found, jax.ShapeDtypeStruct((blocks,), jnp.int32)]
