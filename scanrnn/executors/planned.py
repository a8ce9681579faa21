"""The `planned` executor: it runs bodies as loops of XLA, under XLA's rules."""

from __future__ import annotations

from scanrnn.executors._lower import lower as lower
from scanrnn.executors._xla import rules as rules
from scanrnn.planner import costs
from scanrnn.planner.plan import Plan

NAME = "planned"


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here, or None."""
    if plan.nothing is not None:
        return plan.nothing
    work = costs.work(plan)
    asked = plan.options.implementation == NAME
    if asked or work is None or work >= plan.rules.least_work:
        return None
    return (
        f"a step is only {work} operations, too few to gain from a plan "
        "(implementation='planned' makes one)"
    )
