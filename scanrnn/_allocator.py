"""Ask glibc's allocator to keep the memory that a program frees."""

import ctypes
import sys

# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE = 2**30


def tune_allocator() -> bool:
    """Keep freed memory in the process, to be used again, on Linux with glibc.

    XLA on a CPU allocates the temporaries of a compiled function at every call. By
    default glibc maps every large block afresh and unmaps it when freed, so each call
    faults all its pages in again: thousands of faults for one training step whose
    temporaries are tens of megabytes. This call raises the two thresholds above the
    sizes that occur and keeps all threads in one arena (a thread's own arena cannot
    hold large blocks). The process then keeps its largest footprint until it ends.

    Call it once, before the first JAX computation; it does nothing on import, and
    nothing on systems without glibc. A comparison of speeds is fair only if every
    contender runs with it or every contender runs without it.

    Returns:
        Whether the setting took effect.

    Example:
        >>> import scanrnn
        >>> scanrnn.tune_allocator() in (True, False)
        True

    Reference:
        `man 3 mallopt`.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    options = {
        _M_TRIM_THRESHOLD: _LARGE,
        _M_MMAP_THRESHOLD: _LARGE,
        _M_ARENA_MAX: 1,
    }
    # mallopt answers 1 for each option that it accepts.  A list, so that one refusal
    # does not leave the others unset.
    return all([libc.mallopt(name, value) == 1 for name, value in options.items()])
