"""Arrays with a batch that a step captures, such as the masks of variational dropout.

A program that runs some examples needs their part of such an array at every step. So
the array becomes a leaf of the carry that does not change: programs load their part of
the carry once, and keep it in registers.
"""

from __future__ import annotations

import dataclasses

from jax.extend.core import Var

from scanrnn.planner import ops
from scanrnn.planner.graph import Graph


def carries_captured(graph: Graph) -> tuple[Graph, tuple[Var, ...]]:
    """A step whose captured arrays are the last leaves of its carry, and these arrays.

    They are the weights whose first axis is as long as those of the carry, if only
    elementwise equations read them: these keep examples apart, so a part of the batch
    needs the same part of the array.
    """
    first = {ops.aval(v).shape[:1] for v in graph.carry}
    found = tuple(v for v in graph.weights if _is_captured(graph, v, first))
    rest = tuple(v for v in graph.weights if v not in found)
    carry, carry_out = (*graph.carry, *found), (*graph.carry_out, *found)
    step = dataclasses.replace(graph, weights=rest, carry=carry, carry_out=carry_out)
    return step, found


def _is_captured(graph: Graph, v: Var, first: set[tuple]) -> bool:
    """Whether a weight has the first axis that all leaves of the carry have."""
    readers = [e for e in graph.consumers.get(v, []) if e is not None]
    names = {e.primitive.name for e in readers}
    same = ops.aval(v).ndim > 0 and first == {ops.aval(v).shape[:1]}
    return same and bool(names) and names <= ops.ELEMENTWISE
