"""Run a matrix memory over all steps: from what a step computes to chunks of steps."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.executors.parallel import all_steps
from scanrnn.executors.parallel.products import MemoryStep, Query, in_chunks
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.parallel.factors import Factor
from scanrnn.planner.parallel.memories import Memory
from scanrnn.planner.passes.wide_sums import wide


def run_memory(graph: Graph, one: Memory, S, values, rows: Rows, size: int):
    """Run a matrix memory over all steps, and add what its reads give to `values`.

    Returns the memory after the last step.

    `size` is the number of steps in a chunk.
    """
    dtype = wide(S.dtype)
    array = functools.partial(_array, graph, values, rows, S.ndim, dtype)
    queries = [Query(array(read.query), read.after) for read in one.reads]
    step, S = _step(one, array), S.astype(dtype)
    if one.held or one.reset:
        # What a step reads is then not always what the next step starts from.
        early = [Query(q * step.decay if after else q) for q, after in queries]
        chosen, S = _chosen(one, array, step, S, rows)
        S, reads = in_chunks(chosen, early, S, one.axis, rows.length, size)
        reads = _with_own(one, step, queries, reads)
    else:
        S, reads = in_chunks(step, queries, S, one.axis, rows.length, size)
    apart = [i for i in range(S.ndim) if i != one.axis]
    for read, y in zip(one.reads, reads, strict=True):
        y = jnp.squeeze(y, 1 + one.axis)
        y = jnp.transpose(y, [0, *(1 + apart.index(i) for i in read.order)])
        y = lax.rev(y, [0]) if rows.reverse else y
        values[read.out] = y.astype(ops.aval(read.out).dtype)
    return S.astype(ops.aval(graph.carry[one.leaf]).dtype)


def _step(one: Memory, array) -> MemoryStep:
    """What each step does with a memory."""
    writes = [(array(w.keys), w.sign * array(w.values)) for w in one.writes]
    found, of = None, one.correction
    if of is not None:
        keys, added = writes.pop()
        A, b = (array([Factor(v, of.read.order)], of) for v in of.graph.ys)
        writes.append((keys, added * b))
        found = added * A, array(of.read.query)
    return MemoryStep(array(one.decay), writes, found)


def _chosen(
    one: Memory, array, step: MemoryStep, S, rows: Rows
) -> tuple[MemoryStep, Any]:
    """The same for steps that start anew or do not count; and the first S.

    What such steps write is zero, even if their inputs are NaN.
    """
    a, reset = step.decay, None
    written = step.writes, step.correction
    if one.held:
        counts = array(one.held.factors) == one.held.when
        a = jnp.where(counts, a, 1)
        written = jax.tree.map(lambda v: jnp.where(counts, v, 0), written)
    if one.reset:
        starts = array(one.reset.factors) == one.reset.when
        new = array((one.reset.value,))[0]
        starts = jnp.broadcast_to(starts, (rows.length, *starts.shape[1:]))
        S, starts = jnp.where(starts[0], new, S), _next(starts)
        a = jnp.where(starts, 0, a)
        written = jax.tree.map(lambda v: jnp.where(starts, 0, v), written)
        reset = starts.astype(S.dtype), new
    writes, correction = written
    return MemoryStep(a, writes, correction, reset), S


def _with_own(one: Memory, step: MemoryStep, queries, reads) -> list:
    """Add to what each step reads what the step itself has added."""
    writes = [*step.writes]
    if one.correction is not None and step.correction is not None:
        (keys, added), (share, _) = writes.pop(), step.correction
        at = [read.out for read in one.reads].index(one.correction.read.out)
        writes.append((keys, added + share * reads[at]))

    def own(query):
        sums = ((query * k).sum(1 + one.axis, keepdims=True) * v for k, v in writes)
        return sum(sums)

    found = zip(queries, reads, strict=True)
    return [y + own(q) if after else y for (q, after), y in found]


def _next(flags):
    """The flags of the next step; False at the end."""
    return jnp.concatenate([flags[1:], jnp.zeros_like(flags[:1])])


def _array(graph: Graph, values, rows: Rows, rank: int, dtype, factors, of=None):
    """The product of factors at all steps, in the order of the run.

    Its axes are that of time, and those of S. They have size 1 where it is constant.
    The factors are values of `graph`, or of a correction `of` S.
    """
    total = jnp.ones([1] * (1 + rank), dtype)
    atoms = tuple(factor.atom for factor in factors)
    if of is not None:
        graph, values = of.graph, values | of.constants
    part = graph.part(atoms, all_steps.arrays_of(graph, values))
    made = all_steps.stacked(part, values, rows.length)
    for factor, array in zip(factors, made, strict=True):
        total = total * _placed(array.astype(dtype), factor.axes, rank)
    return lax.rev(total, [0]) if rows.reverse else total


def _placed(array, axes, rank: int):
    """The array `[T, ...]` with each axis in its place, and size 1 elsewhere."""
    array = jnp.squeeze(array, [1 + i for i, axis in enumerate(axes) if axis is None])
    kept = [axis for axis in axes if axis is not None]
    array = jnp.transpose(array, [0, *(1 + kept.index(axis) for axis in sorted(kept))])
    return jnp.expand_dims(array, [1 + i for i in range(rank) if i not in kept])
