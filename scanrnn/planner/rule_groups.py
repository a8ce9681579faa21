"""Groups of rules that belong together: the fields of `Rules` that are records.

Their defaults fit an executor without preferences. Sizes are in bytes. A trip is one
iteration of the compiled loop; it may run several steps. A row is what one step reads
from, or writes to, an array of all steps.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from scanrnn.machines import Machine
from scanrnn.planner.integers import divisor

MB = 2**20


class ScanRules(NamedTuple):
    """Which form a scan takes that is parallel over time.

    Attributes:
      pads: the values of all steps are made as a sum of padded arrays; if not, arrays
        are joined along a new axis.
      joined: how many steps are joined at a time.
      pairs: the fewest and the most numbers of a step, and the most numbers of all
        steps, for which two steps are joined at a time; all values are then sums of
        padded arrays. None for never.
      blocks: how many long blocks of steps are scanned side by side; the fewest steps,
        and the most numbers of a step, for which they are. None for never.
      apart: the most coupled numbers of which each is an array of its own.
    """

    pads: bool = False
    joined: int = 4
    pairs: tuple[int, int, int] | None = None
    blocks: tuple[int, int, int] | None = None
    apart: int = 2

    def in_pairs(self, length: int, numbers: int) -> bool:
        """Whether steps of so many numbers are joined two at a time."""
        if self.pairs is None:
            return False
        least, most, whole = self.pairs
        return least <= numbers <= most and length * numbers <= whole

    def in_blocks(self, length: int, numbers: int) -> bool:
        """Whether blocks of steps of so many numbers are scanned side by side."""
        if self.blocks is None:
            return False
        _, steps, most = self.blocks
        return length >= steps and 0 < numbers <= most


class FeatureRules(NamedTuple):
    """For which products with a matrix W a loop computes `(W.T @ h.T).T`, not `h @ W`.

    Attributes:
      least: the fewest bytes of the matrix.
      side: the least length of its shorter side.
      batch: the smallest and the largest batch.
      loop: the smallest and the largest batch for which the whole loop lies features
        first, so that no step transposes anything; None for never.
      dtypes: of the data that the matrix multiplies; only these were measured. None for
        all.
    """

    least: int
    side: int
    batch: tuple[int, int]
    loop: tuple[int, int] | None
    dtypes: tuple[str, ...] | None = ("float32", "float64")


_ANY = (1, sys.maxsize)
# Features first wherever a loop can; and nowhere, by executors that can if asked.
EVERYWHERE = FeatureRules(least=0, side=0, batch=_ANY, loop=_ANY, dtypes=None)
NOWHERE = EVERYWHERE._replace(batch=(1, 0), loop=None)


class MemoryRules(NamedTuple):
    """Which matrix memories run by products of chunks, and how.

    Attributes:
      steps: how many steps make a chunk; and how many if keys decay one by one, because
        then some pairs of steps have a vector of factors.
      least: how many numbers a memory has at least.
      matrix: if a step reads it by products, and not by sums over an axis, how many
        numbers each matrix has at least; and how many if keys decay one by one, or if
        the memory corrects what it holds.
      loops_values: if a step reads it by products, it runs in a loop where there is no
        gradient.
    """

    steps: tuple[int, int] = (64, 64)
    least: int = 0
    matrix: tuple[int, int] = (0, 0)
    loops_values: bool = False


class RecomputeRules(NamedTuple):
    """When results of contractions are recomputed from carries, and not kept.

    All steps must share a matrix of each contraction.

    Attributes:
      when: "never", "chunked" (if the sequence is long enough for chunks) or "always".
      share: the share of the fast memory that a chunk may fill. If None, the next three
        say how long a chunk is.
      chunks: the number of chunks of a long sequence.
      least: the fewest steps of a chunk.
      fewest: a sequence of fewer such chunks is not cut.
      precomputes: what a reverse step computes from time inputs alone is computed
        before the reverse loop, for a whole chunk.
    """

    when: str = "never"
    share: float | None = None
    chunks: int = 8
    least: int = 64
    fewest: int = 3
    precomputes: bool = False

    def allows(self, made: bool, chunked: bool) -> bool:
        """Whether they are recomputed.

        `made` says whether there are any, and `chunked` whether there would be chunks.
        By the rule "chunked", chunks are the gain, also if there is none to recompute.
        """
        return made if self.when == "always" else chunked and self.when == "chunked"

    def chunk(self, machine: Machine, row: int, length: int) -> int:
        """Steps of a chunk, if `row` bytes of each step are there at the same time."""
        if self.share is not None:
            return max(1, int(self.share * machine.fast_memory) // row)
        most = max(length // self.chunks, self.least)
        return most if self.fewest * most <= length else length


class TripRules(NamedTuple):
    """How many steps a trip has, and how they are compiled.

    Attributes:
      steps: the most steps in a trip; their rows are written together.
      pointwise: the same for a step without products and sums.
      most: the most bytes of all carries in a trip.
      separate: the largest size of a half-precision carry for which the steps of a trip
        with norms are compiled one by one, so that nothing is fused across them.
      separates_products: the steps of a trip are also compiled one by one in a forward
        loop without half precision that multiplies by weights.
    """

    steps: int = 1
    pointwise: int = 1
    most: int = 4 * MB
    separate: int = 0
    separates_products: bool = False

    def block(
        self, length: Any, carry: int = 0, pointwise: bool = False, rest: bool = False
    ) -> int:
        """Steps in one trip of a loop; 1 if `length` is symbolic.

        It is a divisor of `length`. If that is less than half of what a trip may have,
        and there may be a `rest` of steps beside the loop, a trip has as many as it may
        have. Each step of a trip needs memory of its own for its carry, of `carry`
        bytes.
        """
        most = max(self.steps, self.pointwise if pointwise else 1)
        if most == 1 or not isinstance(length, int):
            return 1
        most = max(1, min(most, length, self.most // max(carry, 1)))
        found = divisor(length, most)
        return most if rest and 2 * found <= most else found


class UnrollRules(NamedTuple):
    """The unroll factor of a loop in which each step writes its rows by itself.

    Attributes:
      small: the factor of a loop with small rows.
      row: the most bytes of such a row.
      large: the factor of other reverse loops, and of forward loops that make few
        arrays.
      few: the most arrays that such a forward loop makes.
    """

    small: int = 1
    row: int = 2**14
    large: int = 1
    few: int = 3

    def factor(self, row: int, made: int, reverse: bool) -> int:
        """The unroll factor.

        The largest row has `row` bytes; a step makes `made` arrays: carry and ys.
        """
        if row <= self.row:
            return self.small
        return self.large if reverse or made <= self.few else 1


class ParallelCosts(NamedTuple):
    """What an estimate needs to know of loops that are parallel over time.

    Attributes:
      fused: a scan has a kernel for each doubling of the steps, but not for so many.
      passes: how often a scan reads and writes all steps.
      chunk: the kernels for a chunk of a matrix memory, forward and in reverse.
      correcting: how many more if the memory corrects what it holds (a delta rule).
      halving: how many more for each level of halves, if keys decay one by one.
      chunk_passes: how often a training step reads or writes keys, values, queries and
        scores.
    """

    fused: int = 0
    passes: int = 1
    chunk: int = 1
    correcting: int = 0
    halving: int = 0
    chunk_passes: int = 1


class CostRules(NamedTuple):
    """What an estimate of the time needs to know of an implementation.

    Attributes:
      tile: multiples to which the sizes of a product are rounded up: features, batch,
        depth.
      trip: the kernels of a trip without products and sums, besides one for each array
        that it stacks; in other loops a sum is a kernel. None if a step counts as one
        kernel.
      matrix: the seconds for each byte of a matrix that a step of a loop multiplies by,
        besides the launch.
      scan_step: the kernels of a step by `lax.scan` if there is a `trip`: so many
        besides products and what it stacks, and so many for each sum.
      fission: what the loops of a split step cost, divided by their estimates.
      parallel: what loops cost that are parallel over time.
    """

    tile: tuple[int, int, int] = (1, 1, 1)
    trip: int | None = None
    matrix: float = 0.0
    scan_step: int = 1
    fission: float = 1.0
    parallel: ParallelCosts = ParallelCosts()


class SizeRules(NamedTuple):
    """Which sizes `advise` recommends.

    Attributes:
      multiples: of which numbers batch and features should be multiples.
      half: the same for half precision; None for the same numbers.
      side: fewer rows or features than this leave tiles of a product empty.
      best: the best multiple of rows and features; 0 if partly full tiles are no
        matter.
      waits: the batch and the features up to which a recurrence waits for memory.
    """

    multiples: tuple[int, int] = (1, 1)
    half: tuple[int, int] | None = None
    side: int = 0
    best: int = 0
    waits: tuple[int, int] = (0, 0)
