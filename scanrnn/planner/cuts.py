"""Cut a sequence into pieces of equal length."""

from __future__ import annotations


def cut(length: int, most: int, least: int = 1) -> int:
    """The largest divisor of `length` that is at most `most`.

    If that is less than `least`: the smallest divisor that is at least `least`.
    """
    found = next(d for d in range(max(1, min(most, length)), 0, -1) if not length % d)
    return found if found >= least else length // cut(length, length // least)
