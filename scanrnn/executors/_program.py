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
from scanrnn.executors._names import named, remembering, split
from scanrnn.executors._normed import normed
from scanrnn.executors._ruled import keep_loops
from scanrnn.executors._values import with_values_in_chunks
from scanrnn.executors.scan import scan_graph
from scanrnn.planner import ops
from scanrnn.planner.graph import Env
from scanrnn.planner.plan import Plan

# What is kept of a run over a chunk, where the rest is made again.
_KEEP = {"chunked": ops.keep_inputs, "recompute": keep_loops}


def run(plan: Plan, lower: Callable, weights: list, init: list, xs: list):
    """Run a plan on flat values. Returns the final carry and the ys, flat."""
    weights = [*weights, *(init[i] for i in plan.invariant), *plan.consts]
    moving = [i for i in range(len(init)) if i not in plan.invariant]
    carry, stages = [init[i] for i in moving], plan.stages
    known = named(stages.graph.weights, weights)
    constants = Env(stages.constants.eqns, known).read_all(stages.constants.ys)
    programs = [functools.partial(_run, plan, lower, loop) for loop in plan.loops]
    if plan.residuals in _KEEP:
        programs = [remembering(run, _KEEP[plan.residuals]) for run in programs]
    program = programs[0]
    if plan.chunk is not None:
        sizes = plan.length, plan.chunk
        program = functools.partial(in_chunks, programs, sizes, plan.reverse)
    if plan.value_loops and not split([*constants, *carry, *xs]):
        some = [functools.partial(_run, plan, lower, loop) for loop in plan.value_loops]
        program = with_values_in_chunks(plan, program, some)
    carry, ys = program(constants, carry, xs)
    final = dict(enumerate(init)) | dict(zip(moving, carry, strict=True))
    return list(final.values()), ys


def _run(plan, lower, loop, constants, init, xs):
    stages = plan.stages
    known = named((*stages.constants.ys, *stages.graph.xs), (*constants, *xs))

    def stage(graph):
        return stage_over_time(graph, known, loop.length, _policy(plan))

    known |= named(stages.before.ys, stage(stages.before))
    graph = stages.norms
    if graph is not None:
        inputs = [known[v] for v in graph.inputs]
        # Norms before the loop: in pieces where that pays, else at once.
        whole = loop.piece is None or split(inputs)
        made = stage(graph) if whole else normed(graph, loop, lower, inputs)
        known |= named(graph.ys, made)
    graph = stages.loop
    args = [known[v] for v in graph.weights], init, [known[v] for v in graph.xs]
    if plan.defer:
        final, ys = run_loop(loop, lower, *args)
    else:
        final, ys = scan_graph(graph, *args, loop)
    known |= named(graph.ys, ys)
    return final, stage(stages.after)


def _policy(plan):
    """What is kept of the work outside the loop: what contractions made."""
    return None if plan.residuals == "everything" else ops.keep_products
