"""What the system says about the processor of this computer."""

import os


def cores() -> int:
    """The number of cores that this process may use; all, if the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def flags() -> frozenset[str]:
    """The names of the processor's instruction sets on Linux; elsewhere none."""
    try:
        with open("/proc/cpuinfo") as file:
            # Read only the first core: the list of many cores takes long to make.
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())
