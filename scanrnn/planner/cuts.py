"""Numbers of steps that a sequence is cut into."""

from __future__ import annotations


def cut(length: int, most: int) -> int:
    """The largest number of steps, at most so many, that leaves no rest; at least 1."""
    return next(d for d in range(max(1, min(most, length)), 0, -1) if not length % d)
