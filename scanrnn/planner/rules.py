"""Rules: what an executor prefers on a platform. They do not describe hardware.

A plan is a function of a step, of a `Machine` and of the `Rules` of an executor. What
is rounded to half precision must not depend on machine or rules. The defaults fit an
executor without preferences. Each executor names what it prefers, and a comment at
each field says what was measured.
"""

from __future__ import annotations

import dataclasses
import sys

from scanrnn.machines import Machine
from scanrnn.planner.rule_groups import (
    EVERYWHERE,
    MB,
    NOWHERE,
    CostRules,
    FeatureRules,
    MemoryRules,
    RecomputeRules,
    ScanRules,
    SizeRules,
    TripRules,
    UnrollRules,
)


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
      features_first: for which products the features lie first; None if the executor
        cannot run such loops.
      squeezes_reductions: sums, maxima, ... in a loop read no axes of size 1.
      small_factors_first: numbers and columns are multiplied by each other before they
        scale an array, and after sums of its rows.
      joins_time: products over time have their leading axes joined to one. This, and
        the next two, are for one device.
      transposes_products: the multiplications from which on a product that contracts
        the rows of both operands, `x.T @ dz`, transposes x first; None for never.
      halves_products: in bfloat16 such a product runs in two halves of its columns.
      packs_gates: gates that come from one split are stacked as one array.
      packs_statistics: statistics of norms (a mean, say) are stacked as one array.
      keeps_statistics: statistics of norms are kept for the reverse loop; if not, they
        are recomputed.
      small: the share of the bytes of the largest value that is kept, up to which
        another value is small. Small values are kept, not recomputed. Only small values
        count as statistics.
      draws_before: random numbers that a step draws from keys of its own are drawn
        before the loop, for all steps; if not, the loop draws them.
      keeps_costly: values that take long to compute again, such as noise or a sparse
        product, are kept for the reverse loop, unless results of contractions are
        recomputed.
      slow_moves: with `keeps_costly`, primitives that only move elements, but take long
        to compute again, or what reads them does.
      spreads: the fewest numbers of a value along two axes of which a row lies, from
        which such a row is copied at each step; None for never. This is for one device.
      row_tile: if given, arrays that a loop reads or stacks have time as their major
        axis, and rows that fit tiles of memory, as the carry does: the rows and the
        columns of a tile, and the most tiles of a small row.
      scans: which form a scan takes that is parallel over time.
      delays_copies: copies that only the code after a loop needs are made after it.
      sums_gains_in_loop: gradients of gains are summed in the reverse loop.
      gradients_after: gradients of time inputs that multiply what is carried are
        computed after the reverse loop, if it stacks no more bytes then.
      sums_biases_by_products: gradients of biases are products with ones.
      hoists: a product that runs before the loop may add so large a share of the fast
        memory to what a step touches, or the bytes that move during a launch.
      recompute: when results of contractions are recomputed from carries.
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
      trips: how many steps one iteration of the compiled loop has.
      unroll: the unroll factor of a loop whose trips have one step.
      least_work: the number of operations of a step below which a plan gains nothing.
      least_row_work: the same for a step whose products have one row (a batch of one).
      in_parallel: an estimate may choose scans that are parallel over time.
      memories: which matrix memories run by products of chunks, and how.
      splits: a step is split into several loops (fission) only where sizes differ by at
        most this factor. What a later loop reads of earlier ones, and the operands and
        results of a product that leaves it, are compared with its own leaves of the
        carry. The leaves of earlier loops are compared with what it reads of them.
      wavefront: equal layers run side by side if a launch takes longer than a step.
      unrecorded: operations that the runtime does not record in a graph of kernels, by
        the names of their primitives.
      costs: what estimates of the time need to know.
      sizes: which sizes `advise` recommends.
    """

    overwrites: bool = False
    fences: bool = False
    zero_fills: bool = True
    reads_gates_apart: bool = False
    transposes_weights: bool = False
    features_first: FeatureRules | None = None
    squeezes_reductions: bool = False
    small_factors_first: bool = False
    joins_time: bool = False
    transposes_products: int | None = None
    halves_products: bool = False
    packs_gates: bool = False
    packs_statistics: bool = False
    keeps_statistics: bool = True
    small: float = 1 / 16  # a choice, on every platform: nothing was measured
    draws_before: bool = False
    keeps_costly: bool = False
    slow_moves: frozenset[str] = frozenset()
    spreads: int | None = None
    row_tile: tuple[int, int, int] | None = None
    scans: ScanRules = ScanRules()
    delays_copies: bool = False
    sums_gains_in_loop: bool = False
    gradients_after: bool = False
    sums_biases_by_products: bool = False
    hoists: float = 1 / 64
    recompute: RecomputeRules = RecomputeRules()
    precomputes_sums: bool = False
    norm_share: float | None = None
    norm_steps: int = 1
    forward_share: float | None = None
    convolves_by_step: bool = False
    outside_bytes: int = 1024 * MB
    trips: TripRules = TripRules()
    unroll: UnrollRules = UnrollRules()
    least_work: int = 0
    least_row_work: int = 0
    in_parallel: bool = True
    memories: MemoryRules = MemoryRules()
    splits: int = sys.maxsize
    wavefront: bool = False
    unrecorded: frozenset[str] = frozenset()
    costs: CostRules = CostRules()
    sizes: SizeRules = SizeRules()

    def with_features_first(self, asked: bool | None) -> Rules:
        """The rules with `Options.features_first`; None leaves them as they are."""
        if asked is None or self.features_first is None:
            return self
        first = EVERYWHERE if asked else NOWHERE
        return dataclasses.replace(self, features_first=first)

    def runs_side_by_side(self, machine: Machine, flops: float, dtype: str) -> bool:
        """Whether equal layers run at the same time, each a step behind the one below.

        They do if starting a kernel takes longer than the floating-point operations of
        one step of a layer, whose products have operands of a dtype.
        """
        peak = machine.peaks.get(dtype, machine.peaks["float32"])
        return self.wavefront and flops / peak < machine.launch

    def room(self, machine: Machine) -> int:
        """The bytes that a product before the loop may add to what a step touches."""
        moved = machine.launch * machine.bandwidth
        return int(max(moved, self.hoists * machine.fast_memory))

    def share(self, machine: Machine, part: float | None) -> int | None:
        """The bytes of a share of the fast memory; None if `part` is None."""
        return None if part is None else int(part * machine.fast_memory)
