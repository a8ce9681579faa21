"""The XLA executor: a plan's loops as loops of XLA."""

from __future__ import annotations

from scanrnn.executors import _program
from scanrnn.executors._lower import lower
from scanrnn.planner import costs, counts
from scanrnn.planner.plan import Plan

NAME = "planned"


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here, or None."""
    if plan.nothing is not None:
        return plan.nothing
    work = costs.work(plan)
    if plan.options.plain is False or work is None or work >= plan.machine.small:
        return None
    return (
        f"a step is only {work} operations, too few to gain from a plan "
        "(Options(plain=False) makes one)"
    )


def seconds(plan: Plan) -> float:
    """An estimate of a training step: loops step by step, the rest at once."""
    return costs.cost(plan, counts.planned_gemms).seconds


def run(plan: Plan, weights: list, init: list, xs: list):
    """Run a plan on flat values. Returns the final carry and the ys, flat."""
    return _program.run(plan, lower, weights, init, xs)
