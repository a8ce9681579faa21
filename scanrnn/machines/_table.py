"""The known machines by name, and how to find one by name, device or arrays."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax.core import Tracer

from scanrnn.machines import _processor
from scanrnn.machines._machine import MB, Machine

# Instruction sets for products, and those for products of bfloat16.
_UNITS = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}
_HALVES = {"avx512_bf16", "amx_bf16"}
# The most features in cuDNN's persistent mode, by its guide.
_PERSISTENT = 1024


def _cpu(flags: Iterable[str], vendor: str) -> Machine:
    cores = _processor.cores()
    # A training step in bfloat16 took 1.22 times as long where bfloat16 is emulated.
    half = 1.5e11 if _HALVES.intersection(flags) else 8e10
    peaks = dict(float64=3e10 * cores, float32=1e11 * cores, bfloat16=half * cores)
    units = frozenset(_UNITS.intersection(flags))
    return Machine("cpu", "cpu", cores, 2 * MB, 2e10, peaks, 1e-7, units, vendor)


# The data sheets. The cost of a launch is a rule of thumb. On an H100 kernels in a loop
# took 1.0 to 2.1 microseconds each, by times of nine programs and their compiled loops.
# The last row is for unknown machines: it describes a large accelerator.
MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        row.kind: row
        for row in (
            _cpu(_processor.flags(), _processor.vendor()),
            Machine(
                *("h100", "cuda", 132, 228 * 1024, 3.35e12),
                dict(float64=6.7e13, float32=4.9e14, bfloat16=9.9e14, float16=9.9e14),
                2e-6,
                persistent=_PERSISTENT,
            ),
            Machine(
                *("a100", "cuda", 108, 164 * 1024, 2.04e12),
                dict(float64=1.9e13, float32=1.56e14, bfloat16=3.1e14, float16=3.1e14),
                3e-6,
                persistent=_PERSISTENT,
            ),
            # It has no products of bfloat16.
            Machine(
                *("v100", "cuda", 80, 96 * 1024, 9e11),
                dict(float64=7.8e12, float32=1.57e13, float16=1.25e14),
                3e-6,
                persistent=_PERSISTENT,
            ),
            Machine(
                *("tpu v5e", "tpu", 1, 128 * MB, 8.2e11),
                dict(float32=1.97e14, bfloat16=1.97e14),
                1e-6,
            ),
            Machine(
                *("tpu v5p", "tpu", 2, 64 * MB, 2.77e12),
                dict(float32=4.59e14, bfloat16=4.59e14),
                1e-6,
            ),
            Machine(
                *("tpu v6e", "tpu", 1, 128 * MB, 1.64e12),
                dict(float32=9.18e14, bfloat16=9.18e14),
                1e-6,
            ),
            Machine(*("unknown", "unknown", 1, MB, 1e12), dict(float32=1e14), 3e-6),
        )
    }
)
# The row of a platform if the kind of device is not known.
_TYPICAL = {"cpu": "cpu", "tpu": "tpu v5e"}
# What a GPU is called that is planned for as an H100, but is none, or may be none: no
# kernel is known to be right there.
_LIKE_H100 = {"cuda": "nvidia gpu", "rocm": "amd gpu", "gpu": "gpu"}
# The device kinds that TPUs report, in lower case.
_NAMES = {
    "tpu v5 lite": "tpu v5e",
    "tpu v5e": "tpu v5e",
    "tpu v5p": "tpu v5p",
    "tpu v5": "tpu v5p",
    "tpu v6 lite": "tpu v6e",
    "tpu v6e": "tpu v6e",
}
# An NVIDIA GPU of at least this compute capability is planned for as that machine.
_CAPABILITIES = ((9.0, "h100"), (8.0, "a100"), (0.0, "v100"))
_NEWER = 10.0


def machine_named(machine: Machine | str) -> Machine:
    """Find the `Machine` of a name; a `Machine` is returned as it is.

    Args:
      machine: a `Machine`, or a name in `MACHINES`, in capitals or not.

    Returns:
      The `Machine`.

    Raises:
      ValueError: if the name is unknown.
      TypeError: if `machine` is neither a `Machine` nor a name.

    Example:
      >>> from scanrnn.machines import machine_named
      >>> machine_named("h100").platform
      'cuda'
    """
    if isinstance(machine, Machine):
        return machine
    if not isinstance(machine, str):
        raise TypeError(
            f"machine must be a scanrnn.Machine or a name, got "
            f"{type(machine).__name__}; names are {', '.join(MACHINES)}"
        )
    name = machine.lower()
    if name not in MACHINES:
        close = difflib.get_close_matches(name, MACHINES, cutoff=0.5)
        like = f"most like it {'is' if len(close) == 1 else 'are'} {', '.join(close)}; "
        raise ValueError(
            f"machine {machine!r} is unknown; {like if close else ''}names are "
            f"{', '.join(MACHINES)}; take "
            "the one that is most like yours (an H200 is planned for as 'h100'), or "
            "give a scanrnn.Machine(...) of your own"
        )
    return MACHINES[name]


@functools.cache
def machine_for(
    platform: str,
    device_kind: str = "",
    capability: float | None = None,
    cores: int | None = None,
) -> Machine:
    """Find the `Machine` for a device kind, or a typical one for its platform.

    Args:
      platform: the platform that JAX lowers for: "cpu", "cuda", "rocm" or "tpu".
      device_kind: the kind that the device reports; used for TPUs.
      capability: the compute capability of an NVIDIA GPU, such as 8.0 for an A100. It
        tells the generation: before 8.0 there are no products of bfloat16.
      cores: the number of multiprocessors of a GPU, if it says so: an H100 for PCIe, or
        a part of an H100, has fewer than 132.

    Returns:
      The `Machine`; the one named "unknown" for an unknown platform. A GPU of another
      kind, or of an unknown one, is as an H100, but is not named so: what is proven on
      an H100 alone does not run there by default.

    Example:
      >>> from scanrnn.machines import machine_for
      >>> machine_for("cuda", "Tesla T4", 7.5).kind
      'v100'
      >>> machine_for("cuda", "NVIDIA H100 PCIe", 9.0, 114).cores
      114
    """
    found = _of_generation(platform, device_kind, capability)
    if cores is None or cores == found.cores:
        return found
    return dataclasses.replace(found, cores=cores)


def _of_generation(platform, device_kind, capability) -> Machine:
    if platform == "cuda" and capability is not None and capability < _NEWER:
        return MACHINES[next(n for least, n in _CAPABILITIES if capability >= least)]
    if platform in _LIKE_H100:
        return dataclasses.replace(MACHINES["h100"], kind=_LIKE_H100[platform])
    name = _NAMES.get(device_kind.lower(), _TYPICAL.get(platform, "unknown"))
    return MACHINES[name]


def machine_of(arrays: Iterable[Any] = ()) -> Machine:
    """Find the machine that arrays are on, else the one where JAX computes by default.

    Under `jax.jit` an array is on no machine yet, so it is ignored there.

    Args:
      arrays: the arrays.

    Returns:
      The `Machine`.

    Example:
      >>> import jax.numpy as jnp
      >>> from scanrnn.machines import machine_of
      >>> machine_of([jnp.ones(3)]) == machine_of()
      True
    """
    for array in arrays:
        for device in _devices(array):
            return _machine_of_device(device)
    chosen: Any = getattr(jax.config, "jax_default_device", None)
    if chosen is None or isinstance(chosen, str):  # the name of a platform
        chosen = jax.devices(chosen)[0]
    return _machine_of_device(chosen)


def _machine_of_device(device) -> Machine:
    platform = _platform(device)
    if platform != "cuda":
        return machine_for(platform, device.device_kind)
    capability = getattr(device, "compute_capability", None)
    found = float(capability) if capability else None
    cores = getattr(device, "core_count", None)
    return machine_for(platform, device.device_kind, found, cores)


def cores_here(machine: Machine) -> int:
    """The cores of a machine, or those of the devices that are here, if they are fewer.

    An H100 for PCIe, or a part of one, has fewer multiprocessors than the machine that
    a plan is made for by its name.

    Args:
      machine: the `Machine`.

    Returns:
      The number of cores. If no device of its platform is here, those of the machine.

    Example:
      >>> from scanrnn.machines import MACHINES, cores_here
      >>> cores_here(MACHINES["h100"]) <= 132
      True
    """
    try:
        devices = jax.local_devices(backend=machine.platform)
    except RuntimeError:
        return machine.cores  # none is here
    counts = (getattr(device, "core_count", None) for device in devices)
    return min([machine.cores, *filter(None, counts)])


def _platform(device) -> str:
    """The platform that JAX lowers for. A device of any GPU only says "gpu"."""
    if device.platform != "gpu":
        return device.platform
    version = getattr(device.client, "platform_version", "").lower()
    return "rocm" if "rocm" in version else "cuda"


def _devices(array) -> Iterable[Any]:
    if isinstance(array, Tracer) or not hasattr(array, "sharding"):
        return ()
    try:
        return getattr(array.sharding, "device_set", ())
    except ValueError:
        return ()  # of an abstract mesh: no devices yet
