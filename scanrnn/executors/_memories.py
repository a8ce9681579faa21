"""Run a matrix memory over all steps: from what a step computes to chunks of steps."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax

from scanrnn.executors import associative
from scanrnn.executors._products import in_chunks
from scanrnn.planner import ops
from scanrnn.planner.graph import Graph
from scanrnn.planner.memories import Memory
from scanrnn.planner.rows import Rows
from scanrnn.planner.wide_sums import wide


def remembered(graph: Graph, one: Memory, S, values, rows: Rows, steps: int):
    """Add what is read of a memory at all steps. Returns it after all steps."""
    dtype = wide(S.dtype)
    array = functools.partial(_array, graph, values, rows, S.ndim, dtype)
    a, keys, added = map(array, (one.decay, one.keys, one.values))
    queries = [(array(read.query), read.after) for read in one.reads]
    S, own, fresh = S.astype(dtype), [0.0] * len(queries), None
    if one.held or one.reset:
        # What a step reads is then not always what the next step starts from.
        own = [_at_once(one.axis, q * keys, added) if f else 0.0 for q, f in queries]
        queries = [(q * a if after else q, False) for q, after in queries]
    if one.held:
        counts = array(one.held.factors) == one.held.when
        a, keys = jnp.where(counts, a, 1), jnp.where(counts, keys, 0)
    if one.reset:
        starts = array(one.reset.factors) == one.reset.when
        new = array((one.reset.value,))[0]
        starts = jnp.broadcast_to(starts, (rows.length, *starts.shape[1:]))
        S, starts = jnp.where(starts[0], new, S), _next(starts)
        a, keys = jnp.where(starts, 0, a), jnp.where(starts, 0, keys)
        fresh = starts.astype(dtype), new
    sizes = one.axis, rows.length, steps
    S, reads = in_chunks((a, keys, added), queries, S, fresh, *sizes)
    for read, y, now in zip(one.reads, reads, own, strict=True):
        apart = [i for i in range(S.ndim) if i != one.axis]
        y = jnp.transpose(y + now, [0, *(1 + apart.index(i) for i in read.order)])
        y = lax.rev(y, [0]) if rows.reverse else y
        values[read.out] = y.astype(ops.aval(read.out).dtype)
    return S.astype(ops.aval(graph.carry[one.leaf]).dtype)


def _at_once(axis: int, scores, values):
    """What a step reads of what it has added itself."""
    return jnp.squeeze(scores.sum(1 + axis, keepdims=True) * values, 1 + axis)


def _next(flags):
    """The flags of the next step; False at the end."""
    return jnp.concatenate([flags[1:], jnp.zeros_like(flags[:1])])


def _array(graph: Graph, values, rows: Rows, rank: int, dtype, factors):
    """The product of factors at all steps, in the order of the run.

    Its axes are that of time, and those of S. They have size 1 where it is constant.
    """
    total = jnp.ones([1] * (1 + rank), dtype)
    atoms = tuple(factor.atom for factor in factors)
    part = graph.part(atoms, associative.arrays_of(graph, values))
    made = associative.stacked(part, values, rows.length)
    for factor, array in zip(factors, made, strict=True):
        total = total * _placed(array.astype(dtype), factor.axes, rank)
    return lax.rev(total, [0]) if rows.reverse else total


def _placed(array, axes, rank: int):
    """The array `[T, ...]` with each axis in its place, and size 1 elsewhere."""
    wide = [i for i, axis in enumerate(axes) if axis is not None]
    array = array.reshape(len(array), *(array.shape[1 + i] for i in wide))
    order = sorted(range(len(wide)), key=lambda i: axes[wide[i]])
    array = jnp.transpose(array, [0, *(1 + i for i in order)])
    sizes = {axes[wide[i]]: n for i, n in zip(order, array.shape[1:], strict=True)}
    return array.reshape(len(array), *(sizes.get(i, 1) for i in range(rank)))
