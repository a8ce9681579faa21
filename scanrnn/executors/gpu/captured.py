"""Arrays with a batch that a step captures, such as the masks of variational dropout.

A program that runs some examples needs their part of such an array at every step. So
the array becomes a leaf of the carry that does not change: programs load their part of
the carry once, and keep it in registers.
"""

from __future__ import annotations

import dataclasses

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, variables


def carries_captured(graph: Graph) -> tuple[Graph, tuple[Var, ...]]:
    """A step whose captured arrays are the last leaves of its carry, and these arrays.

    They are the weights whose first axis is as long as those of the carry, if what
    reads them leaves this axis as it is: an elementwise equation, or one that spreads
    them over more axes. Then a part of the batch needs the same part of the array.
    """
    first = {ops.aval(v).shape[:1] for v in graph.carry}
    found = tuple(v for v in graph.weights if _is_captured(graph, v, first))
    if not found:
        return graph, ()
    rest = tuple(v for v in graph.weights if v not in found)
    carry, carry_out = (*graph.carry, *found), (*graph.carry_out, *found)
    step = dataclasses.replace(graph, weights=rest, carry=carry, carry_out=carry_out)
    return step, found


def _is_captured(graph: Graph, v: Var, first: set[tuple]) -> bool:
    """Whether a weight has the first axis that all leaves of the carry have."""
    readers = [e for e in graph.consumers.get(v, []) if e is not None]
    same = ops.aval(v).ndim > 0 and first == {ops.aval(v).shape[:1]}
    return same and bool(readers) and all(map(_leaves_first, readers))


def _leaves_first(eqn: JaxprEqn) -> bool:
    """Whether the first axis of a result is that of an operand."""
    spreads = eqn.primitive.name == "broadcast_in_dim"
    if not spreads:
        return eqn.primitive.name in ops.ELEMENTWISE
    (v,), (out,) = variables(eqn.invars), eqn.outvars
    same = ops.aval(v).shape[:1] == ops.aval(out).shape[:1]
    return same and eqn.params["broadcast_dimensions"][:1] == (0,)
