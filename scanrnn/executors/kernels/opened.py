"""Open the calls of a body: kernels have only equations."""

from __future__ import annotations

import dataclasses

from scanrnn.planner.bodies import Body
from scanrnn.planner.ir import compat
from scanrnn.planner.ir.graph import Values
from scanrnn.planner.trace import inline


def opened(body: Body) -> tuple[Body, Values]:
    """Replace the calls of a body by their equations.

    Returns:
      The body, and the values of the weights that are new in it: constants of the
      calls.
    """
    graph, constants = inline(body.graph, compat.is_any_call)
    names = graph.weights[len(body.graph.weights) :]
    new = dict(zip(names, constants, strict=True))
    return dataclasses.replace(body, graph=graph), new
