"""The machine on which numbers are measured, and how fast it can be."""

import importlib.metadata
import os
import platform
import re
import time
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import products_alone
from benchmarks.products import products
from scanrnn.machines import _processor

PACKAGES = (
    "jax", "jaxlib", "flax", "torch", "dm-haiku", "equinox", "keras", "numpy"
)  # fmt: skip

# AMD's designs, by the family of the processor and whether it has AVX-512.
_ZEN = {("25", False): "Zen 3", ("25", True): "Zen 4", ("26", True): "Zen 5"}


def prepare():
    """Makes the setting of the allocator, which is the same for every contender."""
    import scanrnn

    scanrnn.tune_allocator()


def cores() -> int:
    """The number of cores that this process may use."""
    return _processor.cores()


class Others:
    """Measures how many cores other processes use, from its creation on."""

    def __init__(self):
        self._begin = self._now()

    @staticmethod
    def _now():
        return _busy_seconds() - time.process_time(), time.perf_counter()

    def cores(self) -> float:
        """Cores that others used, on average since the start; 0 if unknown."""
        busy, now = self._now()
        since = max(now - self._begin[1], 1e-9)
        return max(0.0, (busy - self._begin[0]) / since)


def describe() -> dict:
    """The machine and the versions, without names of hosts or paths."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "matrix_units": sorted(
            _processor.flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}
        ),
        "torch_uses": torch_uses(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
    }


def torch_uses() -> str:
    """The widest instructions that torch's own kernels use, such as `AVX512`."""
    try:
        import torch
    except ModuleNotFoundError:
        return "absent"
    return torch.backends.cpu.get_cpu_capability()


def kind() -> str:
    """A file name for this kind of machine, such as `amd-epyc-avx512-2-cores`.

    It names the widest unit for products, if that is wider than AVX2: processors of one
    name differ in it.
    """
    name = re.sub(r"\(r\)|\(tm\)|cpu|processor", "", cpu_name().lower())
    slug = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    wide = {"amx_bf16": "amx-bf16", "avx512f": "avx512"}
    units = [word for flag, word in wide.items() if flag in _processor.flags()][:1]
    return "-".join([slug, *units, f"{cores()}-cores"])


def cpu_name() -> str:
    """The name that the system gives the processor, and its design if AMD made it.

    Clouds hide the model: both a Zen 4 and a Zen 5 are then called "AMD EPYC", and one
    has half of the other's peak.
    """
    text = _cpuinfo()
    match = re.search(r"model name\s*:\s*(.+)", text)
    if not match:
        return platform.processor() or "unknown"
    family = re.search(r"cpu family\s*:\s*(\d+)", text)
    known = (family and family[1], "avx512f" in text.split())
    design = _ZEN.get(known, "") if "AuthenticAMD" in text else ""
    return f"{match[1].strip()} {design}".strip()


def limits() -> dict[str, Any]:
    """Measures GEMM peaks in GFLOP/s, memory in GB/s, and products of an LSTM alone."""
    return {
        "products": products(),
        products_alone.KEY: products_alone.products_alone(),
        "gemm_float32": gemm_peak("float32"),
        "gemm_bfloat16": gemm_peak("bfloat16"),
        "memory": bandwidth(),
    }


def gemm_peak(dtype: str, n: int = 2048) -> float:
    """GFLOP/s of the fastest of a few `n x n` products, by XLA or by torch.

    Torch is not asked for bfloat16 on a processor without instructions for it: there
    one product takes it a minute.
    """
    a = jnp.ones((n, n), dtype)
    product = jax.jit(lambda a: jnp.dot(a, a, preferred_element_type=jnp.float32))
    times = [_fastest(lambda: product(a).block_until_ready())]
    try:
        import torch
    except ModuleNotFoundError:
        pass
    else:
        if dtype == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
            b = torch.ones((n, n), dtype=getattr(torch, dtype))
            times.append(_fastest(lambda: torch.mm(b, b)))
    return 2 * n**3 / min(times) / 1e9


def bandwidth(mebibytes: int = 256) -> float:
    """GB/s of a triad `a = b + s * c` over arrays of `mebibytes` MiB each.

    The arrays should be much larger than any cache.
    """
    n = mebibytes * 2**20 // 4
    b, c = jnp.ones(n, jnp.float32), jnp.ones(n, jnp.float32)
    triad = jax.jit(lambda a, b, c: b + 0.5 * c + 0 * a[0], donate_argnums=0)
    state = [jnp.zeros(n, jnp.float32)]

    def run():
        state[0] = triad(state[0], b, c).block_until_ready()

    return 3 * 4 * n / _fastest(run) / 1e9


def _fastest(run, rounds=5):
    run()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def _cpuinfo():
    try:
        with open("/proc/cpuinfo") as file:
            return file.read()
    except OSError:
        return ""


def _busy_seconds():
    """Seconds that all cores together were busy, or were taken away by a host."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except OSError:
        return time.process_time()
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")
