"""Matrix memories by products of chunks of steps.

Of `S' = a S + v k'` a chunk of L steps knows only the S before its first step. What is
read at step i is a sum over that S and over what steps j <= i have added, each times
the factors a between. These sums are a few matrix products. There is no division, and
no factor is combined with its inverse.

Arrays have the axis of time first, and then the axes of S, with size 1 along those
where they are constant.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def in_chunks(a, keys, values, queries: Sequence, S, axis: int, size: int):
    """The S after all steps, and what each query reads.

    Args:
      a: factors of S, `[T, ...]`.
      keys: `[T, ...]`; `keys * values` is what is added.
      values: `[T, ...]`, constant along `axis`.
      queries: pairs of an array `[T, ...]` and whether it reads S after the step.
      S: the values before the first step.
      axis: the axis of S that queries sum over.
      size: the number of steps in a chunk.

    Returns:
      S, and an array `[T, ...]` for each query, with the axes of S except `axis`.
    """
    length, after = len(a), [flag for _, flag in queries]
    steps = [a, keys, values, *(q for q, _ in queries)]
    size = min(size, length)
    count = -(-length // size)
    ends = [1, *[0] * (len(steps) - 1)]  # more steps, which change nothing
    folded = [
        _padded(x, count * size, end).reshape(count, size, *x.shape[1:])
        for x, end in zip(steps, ends, strict=True)
    ]
    chunk = jax.checkpoint(functools.partial(_chunk, axis, after), prevent_cse=False)
    S, reads = lax.scan(lambda S, x: chunk(S, *x), S, folded)
    unfolded = (y.reshape(-1, *y.shape[2:])[:length] for y in reads)
    return S, [jnp.squeeze(y, 1 + axis) for y in unfolded]


def _padded(x, length, end):
    edges = [(0, length - len(x), 0), *[(0, 0, 0)] * (x.ndim - 1)]
    return lax.pad(x, jnp.asarray(end, x.dtype), edges)


def _chunk(axis: int, after: Sequence[bool], S, a, keys, values, *queries):
    """The S after a chunk, and what each query reads in it."""
    between, since = _factors(a)
    reads = []
    for q, flag in zip(queries, after, strict=True):
        D, P = (between, since) if flag else _one_earlier(between, since)
        if D.shape[2 + axis] > 1:
            scores = _sum(S.ndim, "ij", axis, ("i", q), ("ij", D), ("j", keys))
        else:
            scores = _sum(S.ndim, "ij", axis, ("i", q), ("j", keys)) * D
        added = _sum(S.ndim, "i", None, ("ij", scores), ("j", values))
        reads.append(added + _sum(S.ndim, "i", axis, ("i", q * P), ("", S)))
    new = _sum(S.ndim, "", None, ("j", between[-1] * keys), ("j", values))
    return since[-1] * S + new, reads


def _factors(a):
    """The product of the factors after step j up to step i, and of all up to step i.

    The first is zero where i < j.
    """
    step = jnp.arange(len(a))
    later = (step[:, None] > step).reshape(len(a), len(a), *[1] * (a.ndim - 1))
    between = lax.cumprod(jnp.where(later, a[:, None], 1), 0)
    return jnp.where(later.swapaxes(0, 1), 0, between), lax.cumprod(a, 0)


def _one_earlier(between, since):
    """The same products up to step i - 1."""
    zero, one = jnp.zeros_like(between[:1]), jnp.ones_like(since[:1])
    earlier = jnp.concatenate([zero, between[:-1]])
    return earlier, jnp.concatenate([one, since[:-1]])


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
