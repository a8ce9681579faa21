"""Ask glibc's allocator to keep the memory that a program frees."""

import ctypes
import sys

# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE = 2**30


def tune_allocator() -> bool:
    """Keep freed memory in the process for later use, on Linux with glibc.

    XLA on a CPU allocates the temporaries of a compiled function at every call. By
    default glibc maps each large block anew and unmaps it when it is freed. So each
    call causes page faults for all of them: thousands for one training step whose
    temporaries are tens of megabytes. This function raises two thresholds of glibc to
    1 GiB, and keeps all threads in one arena, because a thread's own arena cannot hold
    large blocks. The process then keeps its largest footprint until it ends.

    Call it once, before the first JAX computation. Importing scanrnn does not call it.
    On systems without glibc it does nothing. A comparison of speeds is fair only if all
    programs run with it, or all without it.

    Returns:
        Whether glibc accepted every setting; False on systems without glibc.

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
    # mallopt returns 1 for each option that it accepts. The list makes all the calls,
    # even if one option is refused.
    return all([libc.mallopt(name, value) == 1 for name, value in options.items()])
