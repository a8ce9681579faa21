"""Divisors and multiples."""

from __future__ import annotations


def divisor(length: int, most: int, least: int = 1) -> int:
    """The largest divisor of `length` that is at most `most`.

    If that is less than `least`: the smallest divisor that is at least `least`.
    """
    found = next(d for d in range(max(1, min(most, length)), 0, -1) if not length % d)
    if found >= least:
        return found
    return length // divisor(length, length // least)


def next_multiple(size: int, tile: int) -> int:
    """The least multiple of a tile that is not less than `size`."""
    return -(-size // tile) * tile
