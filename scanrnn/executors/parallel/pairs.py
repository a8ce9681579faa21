"""What queries read of keys, for all pairs of steps of a chunk.

A query of step i reads what step j has added, times the decay of the steps after j up
to i (or before i, if it reads S before its step).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.executors.parallel.sums import sum_over
from scanrnn.executors.parallel.triangular import of_halves

# In chunks of at most so many steps, a pair of steps has its own decay for every key.
FEW = 4


def scores(axis: int, q, a, k, after: bool):
    """The sums over `axis` of query, decay and key, for all steps i and j.

    Args:
      axis: the axis of S that is summed over.
      q: the queries `[L, ...]`. Further axes are those of S.
      a: the decays.
      k: the keys.
      after: whether the decay of step i counts.

    Returns:
      An array `[L, L, ...]`: zero where step i reads nothing of step j.
    """
    if a.shape[1 + axis] > 1:
        return _by_key(axis, after, q, a, k)
    D = between(a, after)
    return sum_over(a.ndim - 1, "ij", axis, ("i", q), ("j", k)) * D


def _by_key(axis: int, after: bool, q, a, k):
    """The same if keys decay one by one: by halves.

    A step of the second half reads of the first half by a product: its query is
    multiplied by the decay since the middle, and the key by the decay up to the middle.
    Each is a product of numbers of `a`, and nothing is divided.
    """
    steps, rank = len(a), a.ndim - 1
    if steps <= FEW:
        D = between(a, after)
        return sum_over(rank, "ij", axis, ("i", q), ("j", k), ("ij", D))
    if steps % 2:
        q, a, k = (jnp.pad(x, [(0, 1), *[(0, 0)] * rank]) for x in (q, a, k))
        return _by_key(axis, after, q, a, k)[:steps, :steps]
    half = steps // 2
    halves = (x.reshape(2, half, *x.shape[1:]) for x in (q, a, k))
    first, second = jax.vmap(functools.partial(_by_key, axis, after))(*halves)
    late, early = q[half:] * since(a[half:], after), k[:half] * until_end(a[:half])
    low = sum_over(rank, "ij", axis, ("i", late), ("j", early))
    return of_halves(first, low, second, (0, 1))


def between(a, after: bool):
    """The decay of the steps after j up to i; zero where i < j. See `scores`."""
    later = jnp.tri(len(a), k=-1, dtype=bool)
    later = later.reshape(len(a), len(a), *[1] * (a.ndim - 1))
    found = lax.cumprod(jnp.where(later, a[:, None], 1), 0)
    found = jnp.where(later.swapaxes(0, 1), 0, found)
    return found if after else one_later(found, 0)


def since(a, after: bool):
    """The decay from the first step up to each step, or before it."""
    found = lax.cumprod(a, 0)
    return found if after else one_later(found, 1)


def until_end(a):
    """The decay of the steps after each step."""
    found = lax.cumprod(a, 0, reverse=True)
    return jnp.concatenate([found[1:], jnp.ones_like(found[:1])])


def one_later(array, first):
    """The array one step later: at the first step it has this number."""
    return jnp.concatenate([jnp.full_like(array[:1], first), array[:-1]])
