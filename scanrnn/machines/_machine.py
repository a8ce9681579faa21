"""What a machine is: a data sheet.

What an executor likes on it is not here: see `scanrnn.planner.rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

MB = 2**20


@dataclasses.dataclass(frozen=True)
class Machine:
    """One kind of device: what a plan needs to know of it.

    Attributes:
      kind: its name, as in `MACHINES`.
      platform: what JAX lowers for: "cpu", "cuda", "rocm" or "tpu".
      cores: processors, multiprocessors or tensor cores.
      fast_memory: bytes of fast memory per core (second-level cache, shared memory,
        VMEM).
      bandwidth: bytes per second from main memory.
      peaks: floating-point operations per second in products, by dtype.
      launch: seconds to start one kernel.
      units: the CPU's instructions for matrix products, by their names in Linux.

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
    units: frozenset[str] = frozenset()

    def pays(self, dtype: str) -> bool:
        """Whether products take no longer in a dtype than in float32."""
        return self.peaks.get(dtype, 0.0) >= self.peaks["float32"]
