"""The XLA executor: before the loop, the loop, after the loop."""

from __future__ import annotations

import math

import jax
from jax import lax
from jax.extend.core import Literal

from scanrnn.executors._batch import over_time
from scanrnn.executors._loop import Loop, run_loop
from scanrnn.planner.graph import Env, needed, variables
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
    if plan.options.residuals == "chunked":
        carry, ys = _run_chunks(plan, weights, carry, xs)
    else:
        carry, ys = _run(plan, weights, carry, xs, plan.length)
    final = dict(enumerate(init)) | dict(zip(moving, carry, strict=True))
    return list(final.values()), ys


def _run(plan, weights, init, xs, length):
    stages = plan.stages
    graph = stages.graph
    consts = dict(zip(graph.weights, weights, strict=True))
    constants = Env(graph.eqns, consts).read_all(stages.constants)
    streams = dict(zip(graph.xs, xs, strict=True))
    hoisted = _batched(plan, consts, streams, stages.hoisted, length)
    streams |= dict(zip(stages.hoisted, hoisted, strict=True))
    loop = Loop(
        graph=stages.loop,
        length=length,
        reverse=plan.reverse,
        unroll=plan.unroll,
        residuals=plan.options.residuals,
        defer=plan.options.defer,
    )
    inputs = [streams[v] for v in loop.graph.xs]
    final, stacked = run_loop(loop, constants, init, inputs)
    streams |= dict(zip(loop.graph.ys, stacked, strict=True))
    return final, _batched(plan, consts, streams, graph.ys, length)


def _batched(plan, consts, streams, wanted, length) -> list:
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
        if plan.options.residuals != "everything":
            keep = jax.checkpoint_policies.dots_saveable
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


def _run_chunks(plan, weights, init, xs):
    """Keep only the carry every sqrt(T) steps; redo each chunk in reverse."""
    length = plan.length
    if not isinstance(length, int):
        return _run(plan, weights, init, xs, length)
    size = max(1, math.isqrt(length))
    count, rest = divmod(length, size)
    # The part that does not fill a chunk comes last in the order of the loop.
    cut = rest if plan.reverse else count * size
    whole = [x[cut:] if plan.reverse else x[:cut] for x in xs]
    tail = [x[:cut] if plan.reverse else x[cut:] for x in xs]

    def chunk(weights, carry, x):
        return _run(plan, weights, carry, x, size)

    chunk = jax.checkpoint(chunk, prevent_cse=False)
    split = [x.reshape(count, size, *x.shape[1:]) for x in whole]
    carry, ys = lax.scan(
        lambda c, x: chunk(weights, c, x), init, split, count, reverse=plan.reverse
    )
    ys = [y.reshape(count * size, *y.shape[2:]) for y in ys]
    if not rest:
        return carry, ys
    carry, last = _run(plan, weights, carry, tail, rest)
    pairs = zip(last, ys, strict=True) if plan.reverse else zip(ys, last, strict=True)
    return carry, [lax.concatenate(p, 0) for p in pairs]
