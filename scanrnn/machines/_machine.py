"""A machine: the data sheet of a processor.

What an executor prefers on it is in `scanrnn.planner.rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

MB = 2**20
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "unknown")
_POSITIVE = ("cores", "bandwidth", "launch")


@dataclasses.dataclass(frozen=True)
class Machine:
    """One kind of device: what a plan needs to know about it.

    Attributes:
      kind: the name of the machine, as in `MACHINES`.
      platform: the platform that JAX lowers for: "cpu", "cuda", "rocm" or "tpu"; or
        "unknown".
      cores: the number of processor cores, multiprocessors (GPU) or tensor cores (TPU).
      fast_memory: bytes of fast memory per core (second-level cache, shared memory,
        VMEM).
      bandwidth: bytes per second from main memory.
      peaks: peak rates of products in floating-point operations per second, by the name
        of the dtype. "float32" must be among them.
      launch: seconds to start one kernel.
      units: a CPU's instruction sets for matrix products, by their names in Linux.
      persistent: the most features of a layer whose weights cuDNN can keep on chip for
        all steps; 0 if there is no cuDNN.

    Raises:
      ValueError: if the platform is none of these, if `peaks` lacks "float32", or if a
        number of the data sheet is not positive.

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
    persistent: int = 0

    def __post_init__(self):
        """Check the data sheet."""
        if self.platform not in _PLATFORMS:
            raise ValueError(
                f"Machine: platform={self.platform!r}, want one of "
                f"{', '.join(_PLATFORMS)} (cuda or rocm for a GPU)"
            )
        if "float32" not in self.peaks:
            raise ValueError(
                f"Machine: peaks has {', '.join(self.peaks) or 'no dtype'}, want the "
                "rate of 'float32' too"
            )
        sheet = {name: getattr(self, name) for name in _POSITIVE}
        sheet |= {f"peaks[{dtype!r}]": peak for dtype, peak in self.peaks.items()}
        for name, number in sheet.items():
            if not number > 0:
                raise ValueError(f"Machine: {name}={number!r}, want a positive number")

    def pays(self, dtype: str) -> bool:
        """Whether products in a dtype are at least as fast as in float32."""
        return self.peaks.get(dtype, 0.0) >= self.peaks["float32"]

    def __reduce__(self):
        """Pickle the peaks as a dict: Python cannot pickle a read-only view."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _restored, (type(self), fields | {"peaks": dict(self.peaks)})


def _restored(kind, fields) -> Machine:
    return kind(**fields | {"peaks": MappingProxyType(fields["peaks"])})
