"""Run a loop as several, one after the other, each by the executor that suits it.

See `planner/fission.py` for what is split, and why.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from scanrnn.executors import planned
from scanrnn.executors._executor import bound_to_jax
from scanrnn.executors.run.names import named
from scanrnn.executors.run.program import (
    told_without_gradient,
    without_gradient_by_loop,
)
from scanrnn.planner.decide import make_plan
from scanrnn.planner.fission import SubLoop, parts_of
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import has_own_rule
from scanrnn.planner.parallel.leaves import components
from scanrnn.planner.plan import Plan
from scanrnn.planner.report.running import running
from scanrnn.planner.report.summary import headline
from scanrnn.planner.report.wording import listed

NAME = "fission"

rules = planned.rules


def refuse_early(plan: Plan) -> str | None:
    """Why no plan of this step is split, or None."""
    if why := bound_to_jax(plan):
        return why
    assert plan.stages is not None
    if plan.residuals == "chunked" or plan.options.chunk is not None:
        return "a loop in chunks is not split"
    if len(components(plan.stages.graph)) < 2:
        return "all leaves of its carry need one another"
    if any(map(has_own_rule, plan.stages.graph.eqns)):
        return "a jax.custom_vjp in it must see the cotangents of each step"
    return None


def refuse(plan: Plan) -> str | None:
    """Why this plan is not split, or None."""
    if plan.parts:
        return None
    return "no product would leave a later loop, or too much would cross"


def split(plan: Plan, assign: Callable) -> Plan:
    """The plan with the plans of its parts, if there are several."""
    options = dataclasses.replace(plan.options, implementation=None)
    where = plan.reverse, plan.unroll

    def of(part: SubLoop) -> Plan:
        def make(rules):
            return make_plan(part, options, plan.machine, rules, *where)

        return assign(make, plan.machine)

    parts = parts_of(plan.source, plan.length, plan.rules.splits)
    return dataclasses.replace(plan, parts=tuple((part, of(part)) for part in parts))


def describe(plan: Plan) -> list[str]:
    """What each part is, and the loops that run, in words."""
    lines, once = [], _loops_without_gradient(plan)
    for i, (part, loop) in enumerate(plan.parts, 1):
        what, name = headline(loop).removeprefix("Plan: "), f"Part {i}"
        leaves = listed(part.graph.carry)
        by = f" By {loop.executor.name}." if loop.reason is None else ""
        lines.append(f"{name} of {len(plan.parts)} carries {leaves}: {what}{by}")
        lines += [f"{name}: {line}" for line in running(loop, values=not once)]
    if once:
        lines.append("Without a gradient: one loop, which takes less memory.")
        lines += told_without_gradient(plan)
    return lines


def run(plan: Plan, weights: list, init: list, xs: list, differentiated=False):
    """Run a plan on flat values. Returns the final carry and the ys, flat.

    What a part makes for later ones takes memory. A gradient mostly keeps it anyway.
    Where rules limit the memory of a forward pass alone, a single loop runs then.
    """
    parts, args = functools.partial(_run, plan, differentiated), (weights, init, xs)
    if not _loops_without_gradient(plan):
        return parts(*args)
    return without_gradient_by_loop(plan, parts, args, differentiated)


def _loops_without_gradient(plan: Plan) -> bool:
    """Whether a pass without a gradient runs as a single loop."""
    made = (v for part, _ in plan.parts for v in part.graph.ys[len(part.ys) :])
    rules, size = plan.rules, plan.length * ops.bytes_in(made)
    return rules.forward_share is not None or size > rules.outside_bytes


def _run(plan: Plan, differentiated: bool, weights: list, init: list, xs: list):
    graph = plan.source
    names = *graph.weights, *graph.carry, *graph.xs
    values = named(names, (*weights, *init, *xs))
    final, ys = dict(enumerate(init)), {}
    for part, loop in plan.parts:
        step, mine = part.graph, len(part.ys)
        known = {**values, **part.consts}
        groups = (
            [known[v] for v in step.weights],
            [init[k] for k in part.leaves],
            [known[v] for v in step.xs],
        )
        ends, made = loop.executor.run(loop, *groups, differentiated)
        final |= dict(zip(part.leaves, ends, strict=True))
        ys |= dict(zip(part.ys, made[:mine], strict=True))
        values |= dict(zip(step.ys[mine:], made[mine:], strict=True))
    return list(final.values()), [ys[i] for i in range(len(ys))]
