"""Find leaves of a carry that a step reads only in a sum with a value free of them.

A step `h' = A h + b` may have the output h'. Then its reverse loop computes
`c' = A (c + d)` from a cotangent c of the carry and a cotangent d of the output. If the
sum `u = c + d` takes the place of c, neither c nor `A d` need be an array of all steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.parallel import affine
from scanrnn.planner.parallel.leaves import leaves_read, set_of


def entered(graph: Graph) -> tuple[Graph, Mapping[int, Any]]:
    """Make the sum `u = h + d` the carry in place of h, for diagonal leaves and blocks.

    A leaf h enters by the sum `u = h + d` if nothing else reads h, and if d does not
    depend on the group of h. If the next h is an output, it is an array of all steps
    anyway, and the leaf stays.

    Returns:
      The graph with u as the leaf of its carry, and without the sum. It computes the
      next h from u. Also returns d, a variable or a constant, by leaf index.
    """
    consumers, reads = graph.consumers, leaves_read(graph)
    carry, sums, added = list(graph.carry), set(), {}
    for group in affine.groups(graph):
        able = group.kind in ("diagonal", "block")
        for k in group.leaves if able else ():
            found = _entry(carry[k], consumers.get(carry[k], []))
            if found is None or graph.carry_out[k] in graph.ys:
                continue
            eqn, d = found
            if ops.is_literal(d) or not reads[d] & set_of(group.leaves):
                sums.add(eqn)
                carry[k], added[k] = eqn.outvars[0], d
    eqns = tuple(e for e in graph.eqns if e not in sums)
    return dataclasses.replace(graph, carry=tuple(carry), eqns=eqns), added


def _entry(v, readers) -> tuple[JaxprEqn, Any] | None:
    """The only equation that reads a variable, if it is a sum; and what it adds."""
    if len(readers) != 1 or readers[0] is None:
        return None
    (eqn,) = readers
    if eqn.primitive.name not in ("add", "add_any"):
        return None
    first, second = eqn.invars
    other = second if first is v else first
    same = ops.alike(eqn.outvars[0], v) and ops.alike(other, v)
    return (eqn, other) if same else None
