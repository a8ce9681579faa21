"""Matrix memories by products of chunks of steps.

Of `S' = a S + v k'` a chunk of L steps knows only the S before its first step. What is
read at step i is a sum over that S and over what steps j <= i have added, each times
the factors a between. These sums are a few matrix products. There is no division, and
no factor is multiplied by its inverse.

Arrays have the axis of time first, and then the axes of S. They have size 1 along axes
where they are constant.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def in_chunks(
    step: Sequence, queries: Sequence, S, fresh, axis: int, length: int, size: int
) -> tuple:
    """The S after all steps, and what each query reads.

    Args:
      step: a, keys and values of each step: `S' = a * S + keys * values`. Values are
        constant along `axis`.
      queries: pairs of an array and whether it reads S after the step.
      S: the values before the first step.
      fresh: an array and a value of S: each step also adds their product, as where a
        sequence starts anew. None if there is no such step.
      axis: the axis of S that queries sum over.
      length: T.
      size: the number of steps in a chunk.

    Returns:
      S, and an array `[T, ...]` for each query, with the axes of S except `axis`.
    """
    after, count = [flag for _, flag in queries], -(-length // size)
    new = None if fresh is None else fresh[1]
    arrays = [*step, *(q for q, _ in queries), *([] if fresh is None else fresh[:1])]
    ends = [1, *[0] * (len(arrays) - 1)]  # more steps, which change nothing
    folded = [
        _padded(jnp.broadcast_to(x, (length, *x.shape[1:])), count * size, end)
        for x, end in zip(arrays, ends, strict=True)
    ]
    folded = [x.reshape(count, size, *x.shape[1:]) for x in folded]
    chunk = functools.partial(_chunk, axis, after, new)
    chunk = jax.checkpoint(chunk, prevent_cse=False)
    S, reads = lax.scan(lambda S, x: chunk(S, *x), S, folded)
    unfolded = (y.reshape(-1, *y.shape[2:])[:length] for y in reads)
    return S, [jnp.squeeze(y, 1 + axis) for y in unfolded]


def _padded(x, length, end):
    edges = [(0, length - len(x), 0), *[(0, 0, 0)] * (x.ndim - 1)]
    return lax.pad(x, jnp.asarray(end, x.dtype), edges)


def _chunk(axis: int, after: Sequence[bool], new, S, a, keys, values, *rest):
    """The S after a chunk, and what each query reads in it."""
    between, since = _factors(a)
    # What a step holds of each value: its share after the step, and before the first.
    shares, queries = [(since, 1, S)], rest
    if new is not None:
        *queries, again = rest
        anew = _sum(S.ndim, "i", None, ("ij", between), ("j", again))
        shares.append((anew, 0, new))
    reads = []
    for q, flag in zip(queries, after, strict=True):
        D = between if flag else _later(between, 0)
        if D.shape[2 + axis] > 1:
            scores = _sum(S.ndim, "ij", axis, ("i", q), ("ij", D), ("j", keys))
        else:
            scores = _sum(S.ndim, "ij", axis, ("i", q), ("j", keys)) * D
        added = _sum(S.ndim, "i", None, ("ij", scores), ("j", values))
        for share, first, value in shares:
            share = share if flag else _later(share, first)
            added += _sum(S.ndim, "i", axis, ("i", q * share), ("", value))
        reads.append(added)
    end = _sum(S.ndim, "", None, ("j", between[-1] * keys), ("j", values))
    for share, _, value in shares:
        end += share[-1] * value
    return end, reads


def _factors(a):
    """The product of the factors after step j up to step i, and of all up to step i.

    The first is zero where i < j.
    """
    step = jnp.arange(len(a))
    later = (step[:, None] > step).reshape(len(a), len(a), *[1] * (a.ndim - 1))
    between = lax.cumprod(jnp.where(later, a[:, None], 1), 0)
    return jnp.where(later.swapaxes(0, 1), 0, between), lax.cumprod(a, 0)


def _later(array, first):
    """The array one step later: at the first step it has this number."""
    return jnp.concatenate([jnp.full_like(array[:1], first), array[:-1]])


def _sum(rank: int, lead: str, over: int | None, *terms):
    """Sum a product of arrays over an axis of S and over steps that are not in `lead`.

    Each term is the names of its axes of steps, and the array.
    """
    names, written, arrays, found = string.ascii_uppercase, [], [], set()
    for steps, array in terms:
        wide = [i for i in range(rank) if array.shape[len(steps) + i] > 1]
        written.append(steps + "".join(names[i] for i in wide))
        arrays.append(array.reshape([n for k, n in enumerate(array.shape)
                                     if k < len(steps) or n > 1]))  # fmt: skip
        found |= {*wide}
    kept = sorted(found - {over})
    out = lead + "".join(names[i] for i in kept)
    # As precise as a sum over S itself.
    total = jnp.einsum(f"{','.join(written)}->{out}", *arrays, precision="highest")
    sizes = dict(zip(kept, total.shape[len(lead) :], strict=True))
    return total.reshape(
        *total.shape[: len(lead)], *(sizes.get(i, 1) for i in range(rank))
    )
