"""What the processor here says of itself."""

import os


def cores() -> int:
    """The cores that this process may use, where the system can say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def flags() -> frozenset[str]:
    """The names of its instruction sets, as Linux has them; none elsewhere."""
    try:
        with open("/proc/cpuinfo") as file:
            # No further than the first core: a list of many takes long to make.
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())
