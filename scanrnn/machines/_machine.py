"""What a machine is, and what pays on it.

A plan is a function of a step and of a `Machine`. What is true of the step alone (its
stages, its derivative) never asks here; what pays is a rule below, and each rule says
what was seen. What is rounded to half precision may not depend on any of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

MB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """One kind of device, as far as a plan has to know it.

    Attributes:
      kind: its name, as in `MACHINES`.
      platform: what JAX lowers for: "cpu", "cuda", "rocm" or "tpu".
      cores: processors, multiprocessors or tensor cores.
      fast_memory: bytes per core that are close to it (second-level cache, shared
        memory, VMEM).
      bandwidth: bytes per second from main memory.
      peaks: floating-point operations per second in products, by dtype.
      launch: seconds to start one kernel.

    Example:
      >>> from scanrnn.machines import MACHINES
      >>> MACHINES["tpu v5e"].platform
      'tpu'
    """

    kind: str
    platform: str
    cores: int
    fast_memory: int
    bandwidth: float
    peaks: Mapping[str, float] = dataclasses.field(hash=False)
    launch: float

    @property
    def in_place(self) -> bool:
        """Whether rows are written, a trip late, over what is read no more.

        XLA for CPU fills and keeps an array for whatever a loop stacks; on a GPU it
        halves the memory and, several steps at a time, costs no launch. On a TPU each
        late row is 6,000 cycles (an LSTM's product is 8,000).
        """
        return self.platform != "tpu"

    @property
    def fences(self) -> bool:
        """Whether the rows of the last trip are written in a loop of their own.

        A bare update XLA for CPU fuses with all that reads the array, and copies it
        for each.
        """
        return self.platform == "cpu"

    @property
    def fills(self) -> bool:
        """Whether an array of rows is filled with zeros before a loop writes them all.

        XLA for TPU fills those of a loop from the last step to the first: 370,000
        cycles for 64 MB. Elsewhere memory as it is cannot be asked for.
        """
        return self.platform != "tpu"

    @property
    def large_product(self) -> int:
        """Multiplications of a weight gradient worth turning an operand for."""
        return 2**22

    @property
    def pieces(self) -> bool:
        """Whether each gate is read by its own slice of the sequence.

        XLA for CPU is five times slower on slices of a slice; others fuse them.
        """
        return self.platform == "cpu"

    @property
    def turns(self) -> bool:
        """Whether a matrix is transposed once, before the reverse loop.

        CPU libraries pack the other layout anew at every step.
        """
        return self.platform == "cpu"

    @property
    def packs(self) -> bool:
        """Whether gates that one split made are stacked as one array.

        One write in place of four; on a TPU joining them costs as much as a product.
        """
        return self.platform != "tpu"

    @property
    def launches_are_dear(self) -> bool:
        """Whether a step costs as many launches as it has kernels, as on a GPU."""
        return self.launch >= 2e-6

    @property
    def keeps_statistics(self) -> bool:
        """Whether means and deviations of rows are kept for the reverse loop.

        XLA for GPU makes a norm in one kernel, but in four if its mean is asked for.
        """
        return not self.launches_are_dear

    @property
    def packs_statistics(self) -> bool:
        """Whether numbers of rows are stacked as one array.

        On a TPU a row of one number takes as long to write as one of a thousand.
        """
        return self.platform == "tpu"

    @property
    def pins(self) -> bool:
        """Whether what a loop reads and stacks is laid out step by step.

        XLA for TPU may choose time as a minor axis, for the sake of what comes before
        or after, and then gathers each row: 118,000 of 150,000 cycles a step.
        """
        return self.platform == "tpu"

    @property
    def copies_early(self) -> bool:
        """Whether what is ready is computed before a loop, and kept throughout it.

        XLA for CPU runs loops last; others order programs by the memory they take.
        """
        return self.platform == "cpu"

    @property
    def sums_in_loop(self) -> bool:
        """Whether gradients of gains are summed in the loop.

        It saves a CPU a pass over the sequence; a GPU or TPU would pay a reduction
        per step.
        """
        return self.platform == "cpu"

    @property
    def sums_by_products(self) -> bool:
        """Whether gradients of biases are products with ones.

        XLA for TPU sums columns two to seven times slower than its matrix units do.
        """
        return self.platform == "tpu"

    def makes_again(self, made: bool, cut: bool) -> bool:
        """Whether what contractions made is made again of carries, and not kept.

        For a chunk of steps at once it costs one more product, and less is stacked at
        every step. On a TPU a chunk lies in fast memory: an LSTM (1024,16,768) takes a
        quarter fewer cycles, and 0.2 of lax.scan's temporaries in place of 0.8. A CPU
        reads memory sooner than it multiplies.

        Args:
          made: whether there is anything to make again.
          cut: whether the sequence would be run in chunks; then what comes before and
            after a loop is there for a chunk alone, too, a fifth of an Elman's memory.
        """
        return made if self.platform == "tpu" else cut and self.launches_are_dear

    def chunk(self, row: int, length: int) -> int:
        """Steps of a chunk of which all is there at once, `row` bytes of each.

        On a TPU as many as fast memory holds, beside what they are computed with. A GPU
        pays some 30 launches for a chunk, as for five steps.
        """
        if self.platform == "tpu":
            return max(1, 2 * self.fast_memory // 5 // row)
        most = max(length // 16, 32)
        return most if 3 * most <= length else length

    @property
    def ahead(self) -> bool:
        """Whether a reverse loop is given what it would make of values at each step.

        On a TPU no kernel takes less than 2,000 cycles, and joining an LSTM's four
        cotangents takes 8,000; for a chunk of steps at once both are nothing.
        """
        return self.platform == "tpu"

    @property
    def norm_piece(self) -> int | None:
        """Bytes of a norm to differentiate at a time; None is all at once."""
        return self.fast_memory if self.platform == "cpu" else None

    @property
    def small(self) -> int:
        """Operations of a step below which a CPU gains nothing by a plan.

        Where a step costs launches, fewer launches are a gain at any size.
        """
        return 4096 if self.platform == "cpu" else 0

    @property
    def at_once(self) -> int:
        """Bytes that may be computed outside the loop for all steps at once.

        A long sequence must not need memory that `lax.scan` does not. An accelerator
        has its own, and chunks cost it: on a TPU a fifth of the cycles.
        """
        return (256 if self.platform == "cpu" else 1024) * MB

    @property
    def values_at_once(self) -> int | None:
        """The same where no gradient reads it again; None is as with one.

        LSTM (1024,32,128) forward takes 4 MB of temporaries in place of 68, and no more
        time on a CPU. Half of it was up to a tenth slower.
        """
        return self.fast_memory if self.platform == "cpu" else None

    def steps_per_trip(self, length: Any, carry: int = 0) -> int:
        """Steps in one trip of a loop that was asked to make one.

        On a GPU rows of several steps are written by one kernel, and the counter is
        another: ten steps share them, or fewer where their number has such a divisor.
        Each step of a trip has its carry in memory of its own: 4 MB are enough.

        Args:
          length: the number of steps.
          carry: bytes of the carry.
        """
        if not self.launches_are_dear or not isinstance(length, int):
            return 1
        most = min(10, 4 * MB // max(carry, 1))
        return max((d for d in range(2, most + 1) if not length % d), default=1)

    def unrolled(self, row: int, made: int, reverse: bool) -> int:
        """Steps in a trip of a loop, each of which writes its rows by itself.

        XLA for TPU shares kernels between two steps: reverse loops take up to a third
        fewer cycles (an LSTM's 4 to 17 % more). A forward loop that makes much it
        then cuts into more of them. Rows of 16 KB take less than a kernel's least.

        Args:
          row: bytes of its largest row.
          made: how many arrays a step makes, its carry and what is stacked.
          reverse: whether cotangents flow in it.
        """
        if self.platform != "tpu":
            return 1
        if row <= 2**14:
            return 4
        return 2 if reverse or made <= 3 else 1

    def pays(self, dtype: str) -> bool:
        """Whether products take no longer in a dtype than in float32."""
        return self.peaks.get(dtype, 0.0) >= self.peaks["float32"]

    def seconds(self, flops: float, moved: float, dtype: str = "float32") -> float:
        """A bound from below on the time of so much arithmetic and traffic."""
        peak = self.peaks.get(dtype, self.peaks["float32"])
        return max(flops / peak, moved / self.bandwidth)
