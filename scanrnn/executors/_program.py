"""A plan as a program: before the loop, the loop, after it, in chunks of steps.

Stages, derivatives, batching and sharding stand here and in what this reads, once for
all executors: an executor says only how a loop is lowered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from scanrnn.executors._batch import stage_over_time
from scanrnn.executors._chunks import in_chunks
from scanrnn.executors._loop import run_loop
from scanrnn.executors._names import named, remembering_inputs, split
from scanrnn.executors._normed import normed
from scanrnn.executors._values import with_values_in_chunks
from scanrnn.executors.scan import scan_graph
from scanrnn.planner import ops
from scanrnn.planner.graph import Env
from scanrnn.planner.plan import Plan


def run(plan: Plan, lower: Callable, weights: list, init: list, xs: list):
    """Run a plan on flat values. Returns the final carry and the ys, flat."""
    weights = [*weights, *(init[i] for i in plan.invariant), *plan.consts]
    moving = [i for i in range(len(init)) if i not in plan.invariant]
    carry = [init[i] for i in moving]
    programs = [functools.partial(_run, plan, lower, loop) for loop in plan.loops]
    if plan.residuals == "chunked":
        programs = [remembering_inputs(run, plan.residuals) for run in programs]
    program = programs[0]
    if plan.chunk is not None:
        sizes = plan.length, plan.chunk
        program = functools.partial(in_chunks, programs, sizes, plan.reverse)
    if plan.value_loops and not split([*weights, *carry, *xs]):
        some = [functools.partial(_run, plan, lower, loop) for loop in plan.value_loops]
        program = with_values_in_chunks(plan, program, some)
    carry, ys = program(weights, carry, xs)
    final = dict(enumerate(init)) | dict(zip(moving, carry, strict=True))
    return list(final.values()), ys


def _run(plan, lower, loop, weights, init, xs):
    stages = plan.stages
    consts = named(stages.graph.weights, weights)
    made = Env(stages.constants.eqns, consts).read_all(stages.constants.ys)
    constants = named(stages.constants.ys, made)
    streams = named(stages.graph.xs, xs)

    def stage(graph):
        inputs = [streams[v] for v in graph.xs]
        return stage_over_time(graph, weights, inputs, loop.length, _policy(plan))

    streams |= named(stages.before.ys, stage(stages.before))
    if stages.norms is not None:
        streams |= _norms(plan, lower, loop, constants, streams)
    graph = stages.loop
    args = ([constants[v] for v in graph.weights], init, [streams[v] for v in graph.xs])
    if plan.defer:
        final, ys = run_loop(loop, lower, *args)
    else:
        final, ys = scan_graph(graph, *args, loop)
    streams |= named(graph.ys, ys)
    return final, stage(stages.after)


def _norms(plan, lower, loop, constants, streams) -> dict:
    """Norms before the loop: in pieces where that pays, else at once."""
    graph = plan.stages.norms
    inputs = [streams[v] for v in graph.xs]
    weights = [constants[v] for v in graph.weights]
    if loop.piece is not None and not split([*inputs, *weights]):
        outs = normed(graph, loop, lower, inputs, weights)
    else:
        outs = stage_over_time(graph, weights, inputs, loop.length, _policy(plan))
    return named(graph.ys, outs)


def _policy(plan):
    """What is kept of the work outside the loop: what contractions made."""
    return None if plan.residuals == "everything" else ops.keep_products
