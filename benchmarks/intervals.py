"""Confidence intervals of medians, by bootstrap: rounds drawn with replacement."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# How often rounds are drawn, and the share of draws outside of an interval.
DRAWS, OUTSIDE = 1000, 0.05


class Estimate(NamedTuple):
    """A number and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The distance to the farther bound, as a share of the number."""
        return max(self.high - self.value, self.value - self.low) / self.value


def median(seconds: Sequence[float]) -> Estimate:
    """The median of the times of all rounds, with its interval.

    Example:
        >>> median([1.0, 2.0, 3.0]).value
        2.0
    """
    drawn = np.median(np.asarray(seconds)[_draws(len(seconds))], axis=1)
    return _estimate(statistics.median(seconds), drawn)


def ratio(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """The ratio of two medians of the same rounds, with its interval.

    Both times of a round are drawn together: a disturbance of a round affects both.

    Example:
        >>> ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
        Estimate(value=2.0, low=2.0, high=2.0)
    """
    draws = _draws(len(over))
    both = (np.median(np.asarray(times)[draws], axis=1) for times in (over, under))
    drawn = np.divide(*both)
    return _estimate(statistics.median(over) / statistics.median(under), drawn)


def _draws(rounds: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, rounds, (DRAWS, rounds))


def _estimate(value, drawn) -> Estimate:
    low, high = np.quantile(drawn, (OUTSIDE / 2, 1 - OUTSIDE / 2))
    return Estimate(value, float(low), float(high))
