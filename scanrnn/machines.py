"""What a machine is, and what pays on it.

A plan is a function of a step and of a `Machine`. What is true of the step alone (its
stages, its derivative) never asks here; what pays is a rule below, and each rule says
what was seen. Roundings may not depend on any of it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax.core import Tracer

_MB = 2**20


def _peaks(**flops: float) -> Mapping[str, float]:
    return MappingProxyType(flops)


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
      names_layouts: whether a program may say how arrays lie in memory; one that is
        exported may not.

    Example:
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
    names_layouts: bool = True

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
    def pins(self) -> bool:
        """Whether what a loop reads and stacks is laid out step by step.

        XLA for TPU may choose time as a minor axis, for the sake of what comes before
        or after, and then gathers each row: 118,000 of 150,000 cycles a step.
        """
        return self.platform == "tpu" and self.names_layouts

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
        return (256 if self.platform == "cpu" else 1024) * _MB

    @property
    def values_at_once(self) -> int | None:
        """The same where no gradient reads it again; None is as with one.

        LSTM (1024,32,128) forward takes 4 MB of temporaries in place of 68, and no more
        time on a CPU. Half of it was up to a tenth slower.
        """
        return self.fast_memory if self.platform == "cpu" else None

    def steps_per_trip(self, length: Any) -> int:
        """Steps in one trip of a loop that was asked to make one.

        On a GPU rows of several steps are written by one kernel, and the counter is
        another: six steps share them, or fewer where their number has such a divisor.
        """
        if self.launch < 2e-6 or not isinstance(length, int):
            return 1
        return max((d for d in range(2, 7) if not length % d), default=1)

    def seconds(self, flops: float, moved: float, dtype: str = "float32") -> float:
        """A bound from below on the time of so much arithmetic and traffic."""
        peak = self.peaks.get(dtype, self.peaks["float32"])
        return max(flops / peak, moved / self.bandwidth)


def _cores() -> int:
    # Those this process may use, where the system can say.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> Machine:
    cores = _cores()
    peaks = _peaks(float64=3e10 * cores, float32=1e11 * cores, bfloat16=1.5e11 * cores)
    return Machine("cpu", "cpu", cores, 2 * _MB, 2e10, peaks, 1e-7)


# Data sheets; the cost of a launch is a rule of thumb. The last one is for what has no
# row: it is planned for as a large accelerator.
MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        row.kind: row
        for row in (
            _cpu(),
            Machine(
                *("h100", "cuda", 132, 228 * 1024, 3.35e12),
                _peaks(float64=6.7e13, float32=4.9e14, bfloat16=9.9e14, float16=9.9e14),
                3e-6,
            ),
            Machine(
                *("tpu v5e", "tpu", 1, 128 * _MB, 8.2e11),
                _peaks(float32=1.97e14, bfloat16=1.97e14),
                1e-6,
            ),
            Machine(
                *("tpu v5p", "tpu", 2, 128 * _MB, 2.77e12),
                _peaks(float32=4.59e14, bfloat16=4.59e14),
                1e-6,
            ),
            Machine(
                *("tpu v6e", "tpu", 1, 128 * _MB, 1.64e12),
                _peaks(float32=9.18e14, bfloat16=9.18e14),
                1e-6,
            ),
            Machine(*("unknown", "unknown", 1, _MB, 1e12), _peaks(float32=1e14), 3e-6),
        )
    }
)
# The row of a platform of which no device is at hand.
_TYPICAL = {"cpu": "cpu", "cuda": "h100", "rocm": "h100", "gpu": "h100"}
_TYPICAL |= {"tpu": "tpu v5e"}
# How devices call themselves.
_NAMES = {
    "tpu v5 lite": "tpu v5e",
    "tpu v5e": "tpu v5e",
    "tpu v5p": "tpu v5p",
    "tpu v5": "tpu v5p",
    "tpu v6 lite": "tpu v6e",
    "tpu v6e": "tpu v6e",
}


def machine_named(machine: Machine | str) -> Machine:
    """A machine itself, or the row of its name.

    Args:
      machine: a `Machine`, or a name in `MACHINES`.

    Returns:
      The `Machine`.

    Raises:
      ValueError: for a name without a row.
      TypeError: for anything else.

    Example:
      >>> machine_named("h100").platform
      'cuda'
    """
    if isinstance(machine, Machine):
        return machine
    if not isinstance(machine, str):
        raise TypeError(
            f"machine must be a scanrnn.Machine or a name, got {type(machine).__name__}"
        )
    if machine not in MACHINES:
        raise ValueError(
            f"machine {machine!r} is unknown; names are {', '.join(MACHINES)}, and any "
            "scanrnn.Machine(...) will do"
        )
    return MACHINES[machine]


@functools.cache
def machine_for(platform: str, device_kind: str = "") -> Machine:
    """The row of a platform, and of a kind of its devices where that is known."""
    name = _NAMES.get(device_kind.lower(), _TYPICAL.get(platform, "unknown"))
    return MACHINES[name]


def machine_of(arrays: Iterable[Any] = ()) -> Machine:
    """The machine on which arrays are, else that on which JAX computes by default.

    Under `jax.jit` an array is nowhere yet, unless its type names a mesh.
    """
    for array in arrays:
        for device in _devices(array):
            return machine_for(_platform(device), device.device_kind)
    chosen: Any = getattr(jax.config, "jax_default_device", None)
    if isinstance(chosen, str):
        return machine_for(chosen)
    device = chosen or jax.devices()[0]
    return machine_for(_platform(device), device.device_kind)


def _platform(device) -> str:
    """What JAX lowers for: it calls a GPU's devices "gpu", whoever made them."""
    if device.platform != "gpu":
        return device.platform
    version = getattr(device.client, "platform_version", "").lower()
    return "rocm" if "rocm" in version else "cuda"


def _devices(array) -> Iterable[Any]:
    if isinstance(array, Tracer) or not hasattr(array, "sharding"):
        return ()
    return getattr(array.sharding, "device_set", ())
