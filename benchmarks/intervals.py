"""Confidence intervals of medians, by bootstrap: rounds drawn with replacement."""

import math
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


def geometric_mean(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], races: Sequence
) -> Estimate:
    """The geometric mean of ratios of medians, with its interval.

    Args:
      pairs: the times of all rounds, over and under the line, of each ratio.
      races: the race of each pair. Rounds of one race are drawn together, those of
        another race by themselves.

    Example:
        >>> times = [1.0, 2.0, 3.0]
        >>> geometric_mean([(times, times), ([4.0] * 3, [1.0] * 3)], ["a", "b"])
        Estimate(value=2.0, low=2.0, high=2.0)
    """
    seeds = {race: seed for seed, race in enumerate(sorted({*races}, key=repr))}
    values, drawn = [], []
    for (over, under), race in zip(pairs, races, strict=True):
        draws = _draws(len(over), seeds[race])
        both = (np.median(np.asarray(times)[draws], axis=1) for times in (over, under))
        drawn.append(np.log(np.divide(*both)))
        values.append(math.log(statistics.median(over) / statistics.median(under)))
    mean = math.exp(statistics.fmean(values))
    return _estimate(mean, np.exp(np.mean(drawn, axis=0)))


def _draws(rounds: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, rounds, (DRAWS, rounds))


def _estimate(value, drawn) -> Estimate:
    low, high = np.quantile(drawn, (OUTSIDE / 2, 1 - OUTSIDE / 2))
    return Estimate(value, float(low), float(high))
