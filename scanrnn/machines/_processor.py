"""What the system says about the processor of this computer."""

import itertools
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

_INFO = Path("/proc/cpuinfo")


def cores() -> int:
    """The number of cores that this process may use; all, if the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def flags() -> frozenset[str]:
    """The names of the processor's instruction sets on Linux; elsewhere none."""
    return frozenset(_of_first_core("flags").split())


def vendor() -> str:
    """Who made the processor, as it says on Linux; elsewhere empty.

    Processors of Intel say "GenuineIntel", those of AMD "AuthenticAMD".
    """
    return _of_first_core("vendor_id")


def _of_first_core(name: str) -> str:
    """What the system says of the first core: to list many cores takes long."""
    try:
        with _INFO.open() as file:
            lines = itertools.takewhile(str.strip, file)  # an empty line ends a core
            line = next((line for line in lines if line.startswith(name)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()


def model() -> str:
    """The model of the processor, or what else tells it from others."""
    try:
        text = _INFO.read_text()
    except OSError:
        return _model_of_macos() or platform.processor()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    if found:
        # A virtual machine may hide the name of the processor, but not these numbers.
        numbers = r"^(?:cpu )?(family|model)\s*: (.*)$"
        kinds = dict(re.findall(numbers, text, re.MULTILINE))
        return ", ".join([found[1], *(f"{k} {v}" for k, v in sorted(kinds.items()))])
    # On Arm there are numbers instead, of the maker and the kind of each core.
    numbers = r"^CPU (implementer|variant|part|revision)\s*: (.*)$"
    parts = {f"{n} {v}" for n, v in re.findall(numbers, text, re.MULTILINE)}
    return ", ".join([platform.machine(), *sorted(parts)])


def _model_of_macos() -> str:
    """What macOS calls the processor; empty elsewhere."""
    if sys.platform != "darwin":
        return ""
    words = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
