"""Run steps with matrix memories by products of chunks of steps.

Other leaves of the carry run first, or after: in parallel over time on a machine that
likes it, else step by step. JAX differentiates the program. For that it keeps the
memory at the start of each chunk, and what the chunks read.

References:
    Hua et al., "Transformer quality in linear time", 2022, arXiv:2202.10447.
    Yang et al., "Gated linear attention transformers with hardware-efficient
    training", 2023, arXiv:2312.06635.
    Dao and Gu, "Transformers are SSMs", 2024, arXiv:2405.21060.
"""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
from jax import lax

from scanrnn.executors import _scans, associative, scan
from scanrnn.executors._names import named
from scanrnn.executors._products import in_chunks
from scanrnn.planner import affine, ops
from scanrnn.planner.emit import plain
from scanrnn.planner.graph import Graph, variables
from scanrnn.planner.memories import Memory, memories, memory
from scanrnn.planner.plan import Plan
from scanrnn.planner.rows import Rows
from scanrnn.planner.wide_sums import wide

NAME = "chunkwise"
# Steps in a chunk. Where keys decay one by one, every pair of steps has a vector of
# factors, so the chunks are shorter.
STEPS, STEPS_BY_KEY = 64, 16

rules, lower = associative.rules, scan.lower


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here, or None."""
    if plan.options.implementation != NAME:
        return "it runs only if it is asked for by name"
    if plan.stages is None:
        return plan.nothing
    if not plan.defer:
        return "only JAX may differentiate the step (a jax.custom_vjp is in it, say)"
    if not isinstance(plan.length, int):
        return "the number of steps is not known"
    graph = plan.stages.graph
    if memories(graph):
        return None
    why = (memory(graph, group) for group in affine.groups(graph))
    return f"no leaf is a matrix memory: {'; '.join(map(str, why))}"


def told(plan: Plan) -> list[str]:
    """How each leaf of the carry runs, in words."""
    assert plan.stages is not None
    graph, lines = plan.stages.graph, []
    found = {one.leaf: one for one in memories(graph)}
    for group in affine.groups(graph):
        kinds = " and ".join(graph.carry[k].aval.str_short() for k in group.leaves)
        how = "step by step"
        if one := found.get(group.leaves[0]):
            how = f"by products of chunks of {_steps(one)} steps: it is a matrix memory"
        elif group.kind == "constant":
            how = "for all steps at once"
        elif plan.rules.in_parallel and group.parallel:
            how = f"in parallel over time: it is {group.kind}"
        lines.append(f"{kinds} runs {how}.")
    return lines


def run(plan: Plan, weights: list, init: list, xs: list):
    """Run a plan on flat values. Returns the final carry and the ys, flat."""
    assert plan.stages is not None
    graph, rows = plan.stages.graph, Rows(plan.length, plan.reverse)
    weights = [*weights, *(init[i] for i in plan.invariant), *plan.consts]
    moving = [i for i in range(len(init)) if i not in plan.invariant]
    carry, final = [init[i] for i in moving], dict(enumerate(init))
    values = {**named(graph.weights, weights), **named(graph.xs, xs)}
    found = {one.leaf: one for one in memories(graph)}
    in_parallel = plan.rules.in_parallel
    for group in affine.groups(graph):
        (first, *_), starts = group.leaves, [carry[k] for k in group.leaves]
        if first in found:
            final[moving[first]] = _remembered(
                graph, found[first], *starts, values, rows
            )
            continue
        ends = _others(graph, group, starts, values, rows, in_parallel)
        final |= {moving[k]: end for k, end in zip(group.leaves, ends, strict=True)}
    return list(final.values()), _known(graph, graph.ys, values, rows)


def _known(graph: Graph, atoms, values, rows: Rows) -> list:
    """The values of some atoms at all steps; known values replace their equations."""
    ends = Graph(graph.weights, (), tuple(values), graph.eqns, (), ())
    return associative.over_time(ends, atoms, values, rows.length)


def _others(graph: Graph, group, starts, values, rows: Rows, in_parallel) -> list:
    """Add the values of leaves that are no memories. Returns those after all steps."""
    outs = [graph.carry_out[k] for k in group.leaves]
    if group.kind == "constant":
        after = _known(graph, outs, values, rows)
    else:
        known = [v for v in values if v not in graph.weights]
        part = graph.part(outs, known, group.leaves)
        body = plain(part, rows.length, rows.reverse)
        run = scan.lower
        if in_parallel and group.parallel:
            run = associative.lower
        after = run(body, values, starts, values)[1]
    for k, out, start, found in zip(group.leaves, outs, starts, after, strict=True):
        values[graph.carry[k]] = _scans.before(found, start, rows)
        values |= dict.fromkeys(set(variables([out])) - values.keys(), found)
    return [found[rows.last] for found in after]


def _remembered(graph: Graph, one: Memory, S, values, rows: Rows):
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
    steps = min(_steps(one), rows.length)
    S, reads = in_chunks(
        (a, keys, added), queries, S, fresh, one.axis, rows.length, steps
    )
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


def _steps(one: Memory) -> int:
    return STEPS_BY_KEY if one.decays_by_key else STEPS


def _array(graph: Graph, values, rows: Rows, rank: int, dtype, factors):
    """The product of factors at all steps, in the order of the run.

    Its axes are that of time, and those of S. They have size 1 where it is constant.
    """
    total = jnp.ones([1] * (1 + rank), dtype)
    known = [v for v in values if v not in graph.weights]
    atoms = tuple(factor.atom for factor in factors)
    made = associative.stacked(graph.part(atoms, known), values, rows.length)
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
    assert math.prod(sizes.values()) == math.prod(array.shape[1:])
    return array.reshape(len(array), *(sizes.get(i, 1) for i in range(rank)))
