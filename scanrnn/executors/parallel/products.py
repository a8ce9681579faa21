"""Matrix memories by products of chunks of steps.

Of `S' = a S + v k'` a chunk of L steps knows only the S before its first step. What is
read at step i is a sum over that S and over what steps j <= i have added, each times
the factors a between. These sums are a few matrix products. There is no division, and
no factor is multiplied by its inverse.

A delta rule adds `v = b + S p`, and S before the step has the v of earlier steps in it.
The v of a chunk solve `(I - M) v = b + R`. R is what p reads without them. The entry
`M[i, j]`, j < i, is what p of step i reads of k of step j.

Arrays have the axis of time first, and then the axes of S. They have size 1 along axes
where they are constant.

Reference:
    Yang et al., "Parallelizing linear transformers with the delta rule over sequence
    length", 2024, arXiv:2406.06484.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.executors.parallel.pairs import one_later, scores, since, until_end
from scanrnn.executors.parallel.sums import sum_over
from scanrnn.executors.parallel.triangular import inverse


class Query(NamedTuple):
    """An array that multiplies S in a read, and whether S is that after the step."""

    array: Any
    after: bool = False


class MemoryStep(NamedTuple):
    """What a step does with a memory, or what all steps do.

    Attributes:
      decay: the factor of S.
      writes: pairs of keys and values, whose products are added. Values are constant
        along the axis of the reads.
      correction: a share and a query. The values of the last write are larger by the
        share times what the query reads of S before the step. None for no such write.
      reset: a flag, 1 where a sequence starts anew, and the value that S then has;
        their product is added. None if no sequence starts anew.
    """

    decay: Any
    writes: Sequence[tuple[Any, Any]]
    correction: tuple[Any, Any] | None = None
    reset: tuple[Any, Any] | None = None


def in_chunks(
    step: MemoryStep, queries: Sequence[Query], S, axis: int, length: int, size: int
) -> tuple:
    """The S after all steps, and what each query reads.

    Args:
      step: what all steps do. The value of S in `reset` is the same at all steps.
      queries: what reads S at all steps.
      S: the values before the first step.
      axis: the axis of S that queries sum over.
      length: T.
      size: the number of steps in a chunk.

    Returns:
      S, and an array `[T, ...]` for each query, with the axes of S; `axis` has size 1.
    """
    count, after = -(-length // size), [query.after for query in queries]
    flags, new = step.reset or (None, None)

    def folded(x, end=0):
        x = jnp.broadcast_to(x, (length, *x.shape[1:]))
        edges = [(0, count * size - length, 0), *[(0, 0, 0)] * (x.ndim - 1)]
        x = lax.pad(x, jnp.asarray(end, x.dtype), edges)
        return x.reshape(count, size, *x.shape[1:])

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def chunk(S, new, decay, writes, correction, flags, asked):
        reset = None if flags is None else (flags, new)
        step = MemoryStep(decay, writes, correction, reset)
        return _chunk(axis, S, step, list(map(Query, asked, after)))

    # The steps after the last one change nothing.
    rest = step.writes, step.correction, flags, [query.array for query in queries]
    arrays = folded(step.decay, 1), *jax.tree.map(folded, rest)
    S, reads = lax.scan(lambda S, arrays: chunk(S, new, *arrays), S, arrays)
    return S, [y.reshape(count * size, *y.shape[2:])[:length] for y in reads]


def _chunk(axis: int, S, step: MemoryStep, queries: Sequence[Query]):
    """The S after a chunk, and what each query reads in it."""
    a, writes, sums = step.decay, [*step.writes], functools.partial(sum_over, S.ndim)
    shares = [_Share(S, functools.partial(since, a))]
    if step.reset is not None:
        flags, new = step.reset
        shares[0] = shares[0]._replace(gone=functools.partial(_started, flags))
        shares.append(_Share(new, functools.partial(_anew, a, flags)))
    know = _Known(axis, a, shares)
    if step.correction is not None:
        (keys, values), (share, q) = writes.pop(), step.correction
        query = Query(share * q)
        values += know.read(query, writes)
        M = jnp.moveaxis(know.scores(query, keys), (0, 1), (-2, -1))
        X = jnp.moveaxis(inverse(M), (-2, -1), (0, 1))
        writes.append((keys, sums("i", None, ("ij", X), ("j", values))))
    reads = [know.read(query, writes) for query in queries]
    end, left = 0.0, until_end(a)
    for share in shares:
        end += share.of(True)[-1] * share.unless_gone(share.value, True, -1)
    for keys, values in writes:
        if step.reset is not None:
            # An infinity before a new start must not reach the next chunk.
            lost = lax.cummax(step.reset[0], 0, reverse=True) > 0
            values = jnp.where(lost, 0, values)
        end += sums("", None, ("j", left * keys), ("j", values))
    return end, reads


def _started(flags, after: bool):
    """Whether a sequence has started anew before each step, or also after it."""
    started = lax.cummax(flags, 0)
    return (started if after else one_later(started, 0)) > 0


def _anew(a, flags, after: bool):
    """The factor in S, at each step, of the value that a new sequence starts from."""

    # Not by `scans`: in a loop, the second derivatives of jax 0.10.2 are wrong there,
    # because of its `jax.custom_jvp`.
    def joined(early, late):
        return early[0] * late[0], late[0] * early[1] + late[1]

    _, found = lax.associative_scan(joined, tuple(jnp.broadcast_arrays(a, flags)))
    return found if after else one_later(found, 0)


class _Share(NamedTuple):
    """A value of S, and what is left of it.

    Attributes:
      value: the value.
      of: the factor of it that each step has; a function of whether that is after the
        step.
      gone: whether nothing is left of it, even of infinities; a function like `of`.
        None if something always is.
    """

    value: Any
    of: Callable
    gone: Callable | None = None

    def unless_gone(self, found, after: bool, steps):
        """What is found of it at some steps, or zero."""
        gone = self.gone
        return found if gone is None else jnp.where(gone(after)[steps], 0, found)


class _Known(NamedTuple):
    """What is known of S in a chunk, apart from what its steps write.

    Attributes:
      axis: the axis that is summed over.
      decay: the factor of S at each step.
      shares: values of S before, and what is left of them.
    """

    axis: int
    decay: Any
    shares: list[_Share]

    def read(self, query: Query, writes):
        """What a query reads at each step of S and of what has been written."""
        rank, added = self.decay.ndim - 1, 0.0
        for share in self.shares:
            terms = ("i", query.array * share.of(query.after)), ("", share.value)
            found = sum_over(rank, "i", self.axis, *terms)
            added += share.unless_gone(found, query.after, slice(None))
        for keys, values in writes:
            terms = ("ij", self.scores(query, keys)), ("j", values)
            added += sum_over(rank, "i", None, *terms)
        return added

    def scores(self, query: Query, keys):
        """What a query of step i reads of the keys of step j."""
        return scores(self.axis, query.array, self.decay, keys, query.after)
