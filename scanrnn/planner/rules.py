"""Rules: what an executor prefers on a platform. They do not describe hardware.

A plan is a function of a step, of a `Machine` and of the `Rules` of an executor. What
is rounded to half precision must not depend on machine or rules. The defaults fit an
executor without preferences. Each executor names what it prefers, and a comment at
each field says what was measured.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from scanrnn.machines import Machine
from scanrnn.planner.cuts import cut

MB = 2**20


class ScanRules(NamedTuple):
    """Which form a scan takes that is parallel over time.

    Attributes:
      pads: the values of all steps are made as a sum of padded arrays; if not, arrays
        are joined along a new axis.
      pairs: the fewest and the most numbers of a step, and the most numbers of all
        steps, for which two steps are joined at a time, and not four; all values are
        then sums of padded arrays. None for never.
      blocks: the fewest steps, and the most numbers of a step, for which long blocks of
        steps are scanned side by side; None for never.
    """

    pads: bool = False
    pairs: tuple[int, int, int] | None = None
    blocks: tuple[int, int] | None = None

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
        steps, most = self.blocks
        return length >= steps and 0 < numbers <= most


@dataclasses.dataclass(frozen=True)
class Rules:
    """The preferences of one executor on one platform.

    Sizes are in bytes; shares are of the fast memory of a core. A trip is one
    iteration of the compiled loop; it may run several steps. A row is what one step
    reads from, or writes to, an array of all steps.

    Attributes:
      overwrites: buffer reuse: the loop stacks over arrays that are no longer needed.
        A loop of XLA then writes each row one trip late.
      fences: with `overwrites`, the rows of the last trip get a loop of their own.
      zero_fills: an array is filled with zeros before the loop stacks into it.
      reads_gates_apart: each gate is sliced from the sequence by itself.
      transposes_weights: matrices are transposed once, before the reverse loop.
      features_first: the size in bytes of a matrix W from which on a loop computes
        `(W.T @ h.T).T` and not `h @ W`; None for never.
      features_first_side: the least length of the matrix's shorter side for that.
      features_first_batch: the smallest and the largest batch for that.
      features_first_loop: the smallest and the largest batch for which the whole loop
        then lies features first, so that no step transposes anything; None for never.
      squeezes_reductions: sums, maxima, ... in a loop read no axes of size 1.
      joins_time: products over time have their leading axes joined to one. This, and
        the next two, are for one device.
      large_product: the multiplications from which on a product that contracts the rows
        of both operands, `x.T @ dz`, transposes x first; None for never.
      halves_products: in bfloat16 such a product runs in two halves of its columns.
      packs_gates: gates that come from one split are stacked as one array.
      packs_statistics: statistics of norms (a mean, say) are stacked as one array.
      keeps_statistics: statistics of norms are kept for the reverse loop; if not, they
        are recomputed.
      draws_before: random numbers that a step draws from keys of its own are drawn
        before the loop, for all steps; if not, the loop draws them.
      keeps_costly: values that take long to compute again, such as noise or a sparse
        product, are kept for the reverse loop, unless results of contractions are
        recomputed.
      row_tile: if given, arrays that a loop reads or stacks have time as their major
        axis, and rows that fit tiles of memory, as the carry does: the rows and the
        columns of a tile, and the most tiles of a small row.
      scans: which form a scan takes that is parallel over time.
      split_cost: what the loops of a split step cost, divided by their estimates.
      delays_copies: copies that only the code after a loop needs are made after it.
      sums_gains_in_loop: gradients of gains are summed in the reverse loop.
      sums_biases_by_products: gradients of biases are products with ones.
      recomputes: when results of contractions are recomputed from carries, and not
        kept: "never", "chunked" (if the sequence is long enough for chunks) or
        "always". In both cases all steps must share a matrix of each contraction.
      chunk_share: the share of the fast memory that a chunk may fill if contractions
        are recomputed. If None, the next three say how long a chunk is.
      chunks: the number of chunks of a long sequence.
      least_chunk: the fewest steps of a chunk.
      fewest_chunks: a sequence of fewer such chunks is not cut.
      precomputes: if contractions are recomputed, what a reverse step computes from
        time inputs alone is computed before the reverse loop, for a whole chunk.
      precomputes_sums: sums over axes of time inputs alone are computed before the
        reverse loop, also if nothing is recomputed. Other equations of time inputs
        join them if a reverse step then reads no more bytes.
      norm_share: the share that norms before the loop may fill while they are
        differentiated; None for no limit.
      norm_steps: the fewest steps of the pieces in which they then run.
      forward_share: the share that may be computed outside a loop at once if there is
        no gradient; None for the same as with a gradient.
      convolves_by_step: without a gradient, convolutions of time inputs are computed
        step by step, if a step makes more of them than their kernels take.
      outside_bytes: the bytes that may be computed outside a loop at once.
      trip_steps: the most steps in a trip; their rows are written together.
      pointwise_steps: the same for a step without products and sums.
      trip_bytes: the most bytes of all carries in such a trip.
      separate_bytes: the largest size of a half-precision carry for which the steps of
        a trip with norms are compiled one by one, so that nothing is fused across them.
      separates_products: the steps of a trip are also compiled one by one in a forward
        loop without half precision that multiplies by weights.
      starts_of_trip: for estimates, the kernels of a trip without products and sums,
        besides one for each array that it stacks; in other loops a sum is a kernel.
        None if a step counts as one kernel.
      matrix_seconds: for estimates, the seconds for each byte of a matrix that a step
        of a loop multiplies by, besides the launch.
      unroll_small: the unroll factor of a loop with small rows; each step writes its
        own rows.
      small_row: the most bytes of such a row.
      unroll: the unroll factor of other reverse loops, and of forward loops that make
        few arrays.
      few_arrays: the most arrays that such a forward loop makes.
      least_work: the number of operations of a step below which a plan gains nothing.
      least_row_work: the same for a step whose products have one row (a batch of one).
      in_parallel: an estimate may choose scans that are parallel over time.
      memory_steps: how many steps of a matrix memory make a chunk; and how many if keys
        decay one by one, because then some pairs of steps have a vector of factors.
      memory_least: how many numbers a matrix memory has at least that runs in chunks.
      wavefront: equal layers run side by side if a launch takes longer than a step.
      unrecorded: operations that the runtime does not record in a graph of kernels, by
        the names of their primitives.
      tile: multiples to which the sizes of a product are rounded up in an estimate:
        features, batch, depth.
      multiples: of which numbers batch and features should be multiples, for `advise`.
      half_multiples: the same for half precision; None for the same numbers.
      least_side: fewer rows or features than this leave tiles of a product empty.
      best_side: the best multiple of rows and features; 0 if partly full tiles are no
        matter.
      waits: the batch and the features up to which a recurrence waits for memory.
    """

    overwrites: bool = False
    fences: bool = False
    zero_fills: bool = True
    reads_gates_apart: bool = False
    transposes_weights: bool = False
    features_first: int | None = None
    features_first_side: int = 1
    features_first_batch: tuple[int, int] = (1, 2**31)
    features_first_loop: tuple[int, int] | None = None
    squeezes_reductions: bool = False
    joins_time: bool = False
    large_product: int | None = None
    halves_products: bool = False
    packs_gates: bool = False
    packs_statistics: bool = False
    keeps_statistics: bool = True
    draws_before: bool = False
    keeps_costly: bool = False
    row_tile: tuple[int, int, int] | None = None
    scans: ScanRules = ScanRules()
    split_cost: float = 1.0
    delays_copies: bool = False
    sums_gains_in_loop: bool = False
    sums_biases_by_products: bool = False
    recomputes: str = "never"
    chunk_share: float | None = None
    chunks: int = 8
    least_chunk: int = 64
    fewest_chunks: int = 3
    precomputes: bool = False
    precomputes_sums: bool = False
    norm_share: float | None = None
    norm_steps: int = 1
    forward_share: float | None = None
    convolves_by_step: bool = False
    outside_bytes: int = 1024 * MB
    trip_steps: int = 1
    pointwise_steps: int = 1
    trip_bytes: int = 4 * MB
    separate_bytes: int = 0
    separates_products: bool = False
    starts_of_trip: int | None = None
    matrix_seconds: float = 0.0
    unroll_small: int = 1
    small_row: int = 2**14
    unroll: int = 1
    few_arrays: int = 3
    least_work: int = 0
    least_row_work: int = 0
    in_parallel: bool = True
    memory_steps: tuple[int, int] = (64, 64)
    memory_least: int = 0
    wavefront: bool = False
    unrecorded: frozenset[str] = frozenset()
    tile: tuple[int, int, int] = (1, 1, 1)
    multiples: tuple[int, int] = (1, 1)
    half_multiples: tuple[int, int] | None = None
    least_side: int = 0
    best_side: int = 0
    waits: tuple[int, int] = (0, 0)

    def may_recompute(self, made: bool, cut: bool) -> bool:
        """Whether results of contractions are recomputed from carries, and not kept.

        `made` says whether there are any, `cut` whether there would be chunks.
        """
        if self.recomputes == "always":
            return made
        return cut and self.recomputes == "chunked"

    def chunk(self, machine: Machine, row: int, length: int) -> int:
        """Steps of a chunk, if `row` bytes of each step are there at the same time."""
        if self.chunk_share is not None:
            return max(1, int(self.chunk_share * machine.fast_memory) // row)
        most = max(length // self.chunks, self.least_chunk)
        return most if self.fewest_chunks * most <= length else length

    def steps_per_trip(
        self, length: Any, carry: int = 0, pointwise: bool = False
    ) -> int:
        """Steps in one trip of a loop: a divisor of `length`; 1 if that is symbolic.

        Each step of a trip needs memory of its own for its carry, of `carry` bytes.
        """
        most = max(self.trip_steps, self.pointwise_steps if pointwise else 1)
        if most == 1 or not isinstance(length, int):
            return 1
        return cut(length, min(most, self.trip_bytes // max(carry, 1)))

    def unrolled(self, row: int, made: int, reverse: bool) -> int:
        """The unroll factor of a loop in which each step writes its rows by itself.

        Its largest row has `row` bytes, and a step makes `made` arrays: carry and ys.
        """
        if row <= self.small_row:
            return self.unroll_small
        return self.unroll if reverse or made <= self.few_arrays else 1

    def runs_side_by_side(self, machine: Machine, flops: float, dtype: str) -> bool:
        """Whether equal layers run at the same time, each a step behind the one below.

        They do if starting a kernel takes longer than the floating-point operations of
        one step of a layer, whose products have operands of a dtype.
        """
        peak = machine.peaks.get(dtype, machine.peaks["float32"])
        return self.wavefront and flops / peak < machine.launch

    def share(self, machine: Machine, part: float | None) -> int | None:
        """The bytes of a share of the fast memory; None if `part` is None."""
        return None if part is None else int(part * machine.fast_memory)
