"""Cut a sequence into pieces of equal length."""

from __future__ import annotations


def cut(length: int, most: int) -> int:
    """The largest divisor of `length` that is at most `most`; at least 1."""
    return next(d for d in range(max(1, min(most, length)), 0, -1) if not length % d)
