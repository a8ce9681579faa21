"""A machine: the data sheet of a processor.

What an executor prefers on it is in `scanrnn.planner.rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

MB = 2**20
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "unknown")
_POSITIVE = ("cores", "bandwidth", "launch")


class _Peaks(Mapping):
    """Rates by the names of dtypes. Unlike a read-only view, it can be copied."""

    def __init__(self, rates: Mapping[str, float]):
        """Copy the rates, so that nobody can change them."""
        self._rates = dict(rates)

    def __getitem__(self, dtype):
        """The rate of a dtype."""
        return self._rates[dtype]

    def __iter__(self):
        """The names of the dtypes."""
        return iter(self._rates)

    def __len__(self):
        """The number of dtypes."""
        return len(self._rates)

    def __hash__(self):
        """Equal rates have equal hashes, in any order."""
        return hash(frozenset(self._rates.items()))

    def __repr__(self):
        """As a dict."""
        return repr(self._rates)


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
      vendor: who made a CPU, as it says itself: "GenuineIntel", "AuthenticAMD".
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
    peaks: Mapping[str, float]
    launch: float
    units: frozenset[str] = frozenset()
    vendor: str = ""
    persistent: int = 0

    def __post_init__(self):
        """Check the data sheet."""
        object.__setattr__(self, "peaks", _Peaks(self.peaks))
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
