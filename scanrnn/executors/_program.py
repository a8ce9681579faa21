"""A plan as a program: before the loop, the loop, after it, in chunks of steps.

Stages, derivatives, batching and sharding stand here and in what this reads, once for
all executors: an executor says only how a loop is lowered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from scanrnn.executors._batch import stage_over_time
from scanrnn.executors._chunks import in_chunks, rematerialised
from scanrnn.executors._loop import run_loop, run_plain
from scanrnn.executors._names import named, split
from scanrnn.executors._normed import Normed
from scanrnn.executors._values import with_values_in_chunks
from scanrnn.planner import ops
from scanrnn.planner.graph import Env
from scanrnn.planner.plan import Plan


def run(plan: Plan, lower: Callable, weights: list, init: list, xs: list):
    """Run a plan on flat values. Returns the final carry and the ys, flat."""
    weights = [*weights, *(init[i] for i in plan.invariant), *plan.consts]
    moving = [i for i in range(len(init)) if i not in plan.invariant]
    carry = [init[i] for i in moving]
    program = functools.partial(_run, plan, lower)
    if plan.residuals == "chunked":
        program = rematerialised(program)
    if plan.chunk is not None:
        program = functools.partial(
            in_chunks, program, plan.chunk, reverse=plan.reverse
        )
    if plan.value_chunk is not None and not split([*weights, *carry, *xs]):
        run_some = functools.partial(_run, plan, lower)
        program = with_values_in_chunks(plan, program, run_some)
    carry, ys = program(weights, carry, xs, length=plan.length)
    final = dict(enumerate(init)) | dict(zip(moving, carry, strict=True))
    return list(final.values()), ys


def _run(plan, lower, weights, init, xs, length):
    stages, loop = plan.stages, plan.loop_of(length)
    consts = named(stages.graph.weights, weights)
    made = Env(stages.constants.eqns, consts).read_all(stages.constants.ys)
    constants = named(stages.constants.ys, made)
    batched = functools.partial(_stage, plan, length, weights)
    streams = batched(stages.before, named(stages.graph.xs, xs))
    if stages.norms is not None:
        streams |= _norms(plan, loop, constants, streams)
    graph = stages.loop
    args = ([constants[v] for v in graph.weights], init, [streams[v] for v in graph.xs])
    final, ys = run_loop(loop, lower, *args) if plan.defer else run_plain(loop, *args)
    streams |= named(graph.ys, ys)
    after = stages.after
    inputs = [streams[v] for v in after.xs]
    ys = stage_over_time(after, weights, inputs, length, _policy(plan))
    return final, ys


def _stage(plan, length, weights, graph, streams) -> dict:
    """The streams, and what a stage makes of them."""
    inputs = [streams[v] for v in graph.xs]
    outs = stage_over_time(graph, weights, inputs, length, _policy(plan))
    return streams | named(graph.ys, outs)


def _norms(plan, loop, constants, streams) -> dict:
    """Norms before the loop: in pieces where that pays, else at once."""
    graph = plan.stages.norms
    inputs = [streams[v] for v in graph.xs]
    weights = [constants[v] for v in graph.weights]
    if loop.piece is not None and not split([*inputs, *weights]):
        outs = Normed(graph, loop)(inputs, weights)
    else:
        outs = stage_over_time(graph, weights, inputs, loop.length, _policy(plan))
    return named(graph.ys, outs)


def _policy(plan):
    """What is kept of the work outside the loop: what contractions made."""
    return None if plan.residuals == "everything" else ops.keep_products
