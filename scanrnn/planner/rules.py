"""What an executor likes on a platform: a record of preferences, not of hardware.

A plan is a function of a step, of a `Machine` and of the `Rules` of whoever runs it.
What is rounded to half precision may depend on none of them. The defaults are those of
an executor that likes nothing in particular: every one names what it wants, and says
beside it what was seen.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from scanrnn.machines import Machine
from scanrnn.planner.cuts import cut

MB = 2**20


@dataclasses.dataclass(frozen=True)
class Rules:
    """The preferences of one executor on one platform.

    Shares are of the fast memory of a core; sizes are in bytes.

    Attributes:
      overwrites: rows are written over arrays that are read no more, one trip late.
      fences: the rows of the last trip are then written in a loop of their own.
      zero_fills: an array of rows is filled with zeros before the loop writes them.
      reads_gates_apart: each gate is read by its own slice of the sequence.
      transposes_weights: a reverse loop is given matrices that were transposed once.
      features_first: bytes from which a matrix in a loop is multiplied by a batch with
        its features first, `W.T @ h.T`; None is never.
      features_first_side: the least size of the matrix's shorter side for which it is.
      features_first_batch: the smallest and the largest batch for which it is.
      packs_gates: gates that one split made are stacked as one array.
      packs_statistics: numbers of rows, as norms make them, are stacked as one array.
      keeps_statistics: numbers of rows are kept for the reverse loop.
      pins_rows: what a loop reads and stacks is laid out step by step.
      delays_copies: copies for what comes after a loop are made after it.
      sums_gains_in_loop: gradients of gains are summed in the reverse loop.
      sums_biases_by_products: gradients of biases are products with ones.
      recomputes: what contractions made is made again of carries: "never", "chunked"
        (of a sequence that is long enough to be run in chunks) or "always".
      chunk_share: share of the fast memory that a chunk may fill then; None where it is
        no matter of memory: a chunk is an 8th of the sequence, 64 steps at least.
      precomputes: what a reverse step makes of time inputs alone is then made before
        its loop, for a chunk at once.
      precomputes_sums: that is done with sums over axes alone.
      norm_share: share that is differentiated at a time of norms before the loop; None
        is all at once.
      forward_share: share that may be computed outside a loop at once where no gradient
        reads it again; None is as with one.
      outside_bytes: what may be computed outside a loop for all steps at once.
      trip_steps: most steps in a trip whose rows are written together.
      trip_bytes: most bytes of the carries of such a trip.
      separate_bytes: up to so many bytes of a half-precision carry the steps of a trip
        that has norms are compiled one by one: nothing is fused across them.
      separates_products: so are those of a full-precision forward loop with products of
        weights.
      unroll_small: steps in a trip, each with its own rows, of a loop of small rows.
      unroll: the same of a reverse loop, and of a forward loop that makes few arrays.
      least_work: operations of a step below which nothing is gained.
      wavefront: equal layers run side by side where a launch costs more than a step.
      tile: what sizes of a product are rounded up to: features, batch, depth.
    """

    overwrites: bool = False
    fences: bool = False
    zero_fills: bool = True
    reads_gates_apart: bool = False
    transposes_weights: bool = False
    features_first: int | None = None
    features_first_side: int = 1
    features_first_batch: tuple[int, int] = (1, 2**31)
    packs_gates: bool = False
    packs_statistics: bool = False
    keeps_statistics: bool = True
    pins_rows: bool = False
    delays_copies: bool = False
    sums_gains_in_loop: bool = False
    sums_biases_by_products: bool = False
    recomputes: str = "never"
    chunk_share: float | None = None
    precomputes: bool = False
    precomputes_sums: bool = False
    norm_share: float | None = None
    forward_share: float | None = None
    outside_bytes: int = 1024 * MB
    trip_steps: int = 1
    trip_bytes: int = 4 * MB
    separate_bytes: int = 0
    separates_products: bool = False
    unroll_small: int = 1
    unroll: int = 1
    least_work: int = 0
    wavefront: bool = False
    tile: tuple[int, int, int] = (1, 1, 1)

    def may_recompute(self, made: bool, cut: bool) -> bool:
        """Whether what contractions made is made again of carries, and not kept.

        Args:
          made: whether there is anything to make again.
          cut: whether the sequence would be run in chunks.
        """
        if self.recomputes == "always":
            return made
        return cut and self.recomputes == "chunked"

    def chunk(self, machine: Machine, row: int, length: int) -> int:
        """Steps of a chunk of which all is there at once, `row` bytes of each."""
        if self.chunk_share is not None:
            return max(1, int(self.chunk_share * machine.fast_memory) // row)
        most = max(length // 8, 64)
        return most if 3 * most <= length else length

    def steps_per_trip(self, length: Any, carry: int = 0) -> int:
        """Steps in one trip of a loop: a divisor of `length`, which may be symbolic.

        Each step of a trip has its carry, of so many bytes, in memory of its own.
        """
        if self.trip_steps == 1 or not isinstance(length, int):
            return 1
        return cut(length, min(self.trip_steps, self.trip_bytes // max(carry, 1)))

    def unrolled(self, row: int, made: int, reverse: bool) -> int:
        """Steps in a trip of a loop, each of which writes its rows by itself.

        Args:
          row: bytes of its largest row.
          made: how many arrays a step makes, its carry and what is stacked.
          reverse: whether cotangents flow in it.
        """
        if row <= 2**14:
            return self.unroll_small
        return self.unroll if reverse or made <= 3 else 1

    def share(self, machine: Machine, part: float | None) -> int | None:
        """Bytes of a share of the fast memory; None of None."""
        return None if part is None else int(part * machine.fast_memory)
