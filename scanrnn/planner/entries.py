"""Find leaves of a carry that enter a step by a sum with what is free of them.

A step `h' = A h + b` may have the output h'. Then its reverse loop computes
`c' = A (c + d)` from a cotangent c of the carry and a cotangent d of the output. If the
sum `u = c + d` takes the place of c, neither c nor `A d` need be an array of all steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from scanrnn.planner import affine, ops
from scanrnn.planner.graph import Graph


def entered(graph: Graph) -> tuple[Graph, Mapping[int, Any]]:
    """Put such sums in the places of their leaves, for diagonal leaves and blocks.

    A leaf h enters by the sum `u = h + d` if nothing else reads h, and if d does not
    depend on the group of h.

    Returns:
      The graph with u as the leaf of its carry, and without the sum. It computes the
      next h from u. And d, a variable or a constant, by the index of the leaf.
    """
    consumers, reads = graph.consumers(), affine.leaves_read(graph)
    carry, sums, added = list(graph.carry), set(), {}
    for group in affine.groups(graph):
        for k in group.leaves if group.kind in ("diagonal", "block") else ():
            v = graph.carry[k]
            readers = consumers.get(v, [])
            other = _added(v, readers[0]) if len(readers) == 1 else None
            if other is None:
                continue
            if ops.is_literal(other) or reads[other].isdisjoint(group.leaves):
                sums.add(readers[0])
                carry[k], added[k] = readers[0].outvars[0], other
    eqns = tuple(e for e in graph.eqns if e not in sums)
    return dataclasses.replace(graph, carry=tuple(carry), eqns=eqns), added


def _added(v, eqn) -> Any:
    """What an equation adds to a variable, without a change of its type; else None."""
    if eqn is None or eqn.primitive.name not in ("add", "add_any"):
        return None
    first, second = eqn.invars
    other = second if first is v else first
    same = ops.alike(eqn.outvars[0], v) and ops.alike(other, v)
    return other if same else None
