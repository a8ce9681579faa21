"""Why a loop does not run in parallel over time."""

from __future__ import annotations

from scanrnn.planner.bodies import Body
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.parallel import affine
from scanrnn.planner.parallel.affine import Group

DRAWS = (
    "its keys draw other random numbers if all steps are computed at once; keys of "
    "impl='threefry2x32' do not"
)


def obstacle(body: Body) -> str | None:
    """Why a body does not run in parallel over time; None if it does.

    All its floating-point leaves must be affine, or of a form in `max_plus`. Other
    leaves, such as keys, may run step by step in a loop of their own.
    """
    if slow := sequential(body.graph):
        return ", and ".join(slow)
    graph = body.graph
    if ops.draws_apart(graph.eqns):
        return DRAWS
    if not any(group.parallel for group in affine.groups(graph)):
        return "no leaf is affine"
    if not isinstance(body.rows.length, int):
        return "the number of steps is not known"
    return None


def sequential(graph: Graph) -> list[str]:
    """The groups with floating-point leaves that must run step by step, and why."""
    return [
        f"{types_of(graph, group)} is sequential ({group.why})"
        for group in affine.groups(graph)
        if not group.parallel and _has_floats(graph, group)
    ]


def types_of(graph: Graph, group: Group) -> str:
    """The types of the leaves of a group, in words."""
    return " and ".join(ops.aval(graph.carry[k]).str_short() for k in group.leaves)


def _has_floats(graph: Graph, group: Group) -> bool:
    return any(ops.is_inexact(graph.carry[k]) for k in group.leaves)
