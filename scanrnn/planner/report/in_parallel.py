"""What of a loop can run in parallel over time, what runs step by step, and why."""

from __future__ import annotations

from scanrnn.planner.bodies import Body
from scanrnn.planner.emit import REVERSE
from scanrnn.planner.ir import ops
from scanrnn.planner.parallel import affine
from scanrnn.planner.parallel.affine import Group
from scanrnn.planner.parallel.obstacles import obstacle, sequential, types_of
from scanrnn.planner.report.wording import tally

# How a group of leaves runs in a loop that is parallel over time, by its kind.
_HOW = {
    "constant": "for all steps at once",
    "sum": "by a cumulative sum",
    "sequential": "step by step",
}


def describe(body: Body) -> str:
    """How each group of leaves runs in a loop that is parallel over time, and why."""
    reason = obstacle(body)
    if reason is not None:
        return f"step by step, as {reason}"
    groups = [_group(body.graph, group) for group in affine.groups(body.graph)]
    return f"over time: {tally(groups, '; ')}"


def newton(plan) -> str:
    """Whether `scanrnn.solve` can compute a loop that is not affine, and if it pays.

    It needs a reverse loop that is affine: then the derivative of a step has small
    blocks. The text is empty if the loop is affine, or if that does not hold.
    """
    floats = all(map(ops.is_inexact, plan.source.carry))
    if not (floats and sequential(plan.stages.loop)):
        return ""
    body = plan.bodies.get(REVERSE)
    if body is None or obstacle(body) is not None:
        return ""
    applies = "Newton's method (scanrnn.solve) applies"
    if not plan.rules.in_parallel:
        return f"{applies}, but seldom pays on a {plan.machine.platform.upper()}."
    cost = "an iteration is an affine scan"
    return f"{applies}: {cost}. It pays if a run shows that few iterations are needed."


def _group(graph, group: Group) -> str:
    how = _HOW.get(group.kind, "by an associative scan")
    if group.kind == "sum" and not group.read:
        how = "by one sum"
    why = f": {group.why}" if group.why else ""
    return f"{types_of(graph, group)} {how} ({group.kind}{why})"
