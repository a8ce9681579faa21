"""The XLA executor: before the loop, the loop, after the loop."""

from __future__ import annotations

import functools

import jax
from jax.extend.core import Literal

from scanrnn.executors._batch import over_time
from scanrnn.executors._chunks import in_chunks, rematerialised
from scanrnn.executors._loop import run_loop
from scanrnn.executors._normed import Normed
from scanrnn.executors._recurrence import Loop, named, varying
from scanrnn.planner import ops
from scanrnn.planner.graph import Env, needed, variables
from scanrnn.planner.norms import find_norms
from scanrnn.planner.plan import Plan

NAME = "planned"


def supports(plan: Plan) -> str | None:
    """Why this plan cannot run here, or None."""
    return plan.plain


def run(plan: Plan, weights: list, init: list, xs: list):
    """Run a plan on flat values. Returns the final carry and the ys, flat."""
    weights = [*weights, *(init[i] for i in plan.invariant), *plan.consts]
    moving = [i for i in range(len(init)) if i not in plan.invariant]
    carry = [init[i] for i in moving]
    program = functools.partial(_run, plan)
    if plan.residuals == "chunked":
        program = rematerialised(program)
    if plan.chunk is not None:
        program = functools.partial(
            in_chunks, program, plan.chunk, reverse=plan.reverse
        )
    carry, ys = program(weights, carry, xs, length=plan.length)
    final = dict(enumerate(init)) | dict(zip(moving, carry, strict=True))
    return list(final.values()), ys


def _run(plan, weights, init, xs, length):
    stages = plan.stages
    graph = stages.graph
    consts = dict(zip(graph.weights, weights, strict=True))
    constants = Env(graph.eqns, consts).read_all(stages.constants)
    streams = dict(zip(graph.xs, xs, strict=True))
    loop = Loop(
        graph=stages.loop,
        length=length,
        reverse=plan.reverse,
        unroll=plan.unroll,
        residuals=plan.residuals,
        defer=plan.defer,
        laid_out=plan.laid_out,
        spare=_spare(plan),
    )
    streams = _hoisted(plan, loop, consts, streams)
    inputs = [streams[v] for v in loop.graph.xs]
    final, stacked = run_loop(loop, constants, init, inputs)
    streams |= dict(zip(loop.graph.ys, stacked, strict=True))
    return final, _batched(plan, consts, streams, graph.ys, length=length)


def _hoisted(plan, loop, consts, streams) -> dict:
    """The streams, with what the loop reads that is computed before it."""
    graph, wanted = plan.stages.graph, plan.stages.hoisted
    batched = functools.partial(_batched, plan, consts, length=loop.length)
    norms = None
    if loop.in_place and not varying([*streams.values(), *consts.values()]):
        norms = find_norms(graph, wanted, loop.length)
    if norms is None:
        return streams | named(wanted, batched(streams, wanted))
    products = {*norms.streams, *wanted} - {*norms.outs, *streams}
    known = streams | named(products, batched(streams, products))
    fixed = Env(graph.eqns, consts).read_all(norms.constants)
    run = Normed(graph, loop.length, norms)
    made = run([known[v] for v in norms.streams], fixed)
    return known | named(norms.outs, made)


def _spare(plan) -> frozenset:
    """What is computed before the loop and not read after it."""
    graph, known = plan.stages.graph, (*plan.stages.hoisted, *plan.stages.loop.ys)
    missing = [a for a in graph.ys if isinstance(a, Literal) or a not in known]
    after = {*variables(graph.ys), *_reads(graph, missing, known)}
    return frozenset(plan.stages.hoisted) - after


def _batched(plan, consts, streams, wanted, *, length) -> list:
    """Values of `wanted` for all steps at once, from what is known per step."""
    graph = plan.stages.graph
    missing = [a for a in wanted if isinstance(a, Literal) or a not in streams]
    reads = {v: streams[v] for v in _reads(graph, missing, streams)}

    def step(values, consts_):
        known = dict(zip(consts, consts_, strict=True))
        env = Env(graph.eqns, known | dict(zip(reads, values, strict=True)))
        return env.read_all(missing)

    made = iter(())
    if missing:
        batched = over_time(step, (0, None), length)
        if plan.residuals != "everything":
            keep = ops.keep_products
            batched = jax.checkpoint(batched, prevent_cse=False, policy=keep)
        made = iter(batched(list(reads.values()), list(consts.values())))
    return [
        next(made) if isinstance(a, Literal) or a not in streams else streams[a]
        for a in wanted
    ]


def _reads(graph, wanted, streams) -> list:
    eqns = needed(graph.eqns, wanted, streams)
    read = {*variables(wanted), *(v for e in eqns for v in variables(e.invars))}
    return [v for v in streams if v in read]
