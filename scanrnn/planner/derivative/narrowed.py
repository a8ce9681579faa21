"""Keep what a step reads of a large carry, in place of the carry.

A step may read a few rows of a table, a ring buffer or a stack that it carries. Where
the rest of the table is only written or passed on, its derivative needs the rows alone.
The whole table, kept for every step, can be many times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import CARRY, Graph, variables
from scanrnn.planner.motion.crossing import MANY, cheapest_cut, width

# With these a tangent of an operand needs no value of that operand.
_PASSED = ops.LINEAR | {
    *("gather", "dynamic_slice", "scatter", "scatter-add", "dynamic_update_slice")
}


def are_read_in_part(graph: Graph, carries: Iterable[Var]) -> bool:
    """Whether a step passes on one of these carries, and reads at most half of it."""
    return any(_is_read_in_part(graph, c) for c in carries)


def _is_read_in_part(graph: Graph, carry: Var) -> bool:
    """Looks at the equations that read the carry, or all of it after another one.

    Sizes are numbers of elements: a carry that is only cast to half precision is whole.
    """
    size, parts, todo = ops.size_of(ops.aval(carry)), 0, [carry]
    if not ops.is_inexact(carry):
        return False
    passed = set(todo)
    while todo:
        v = todo.pop()
        for eqn in filter(None, graph.consumers.get(v, ())):
            if eqn.primitive.name not in _PASSED and not _scales(graph, eqn):
                return False
            outs = [o for o in eqn.outvars if not isinstance(o, DropVar)]
            whole = {o for o in outs if 2 * ops.size_of(ops.aval(o)) > size}
            parts += sum(ops.size_of(ops.aval(o)) for o in outs if o not in whole)
            todo += whole - passed
            passed |= whole
    return 0 < 2 * parts <= size


def _scales(graph: Graph, eqn: JaxprEqn) -> bool:
    """Whether an equation multiplies or divides by what is free of carries."""
    bits, name = graph.depends, eqn.primitive.name
    carried = [not ops.is_literal(a) and bool(bits[a] & CARRY) for a in eqn.invars]
    return name == "mul" and not all(carried) or name == "div" and not carried[1]


def in_place_of_carries(
    graph: Graph,
    made: list[Var],
    read: frozenset[Var],
    recomputable: Callable[[JaxprEqn], bool],
) -> list[Var]:
    """The values with the fewest bytes from which the others follow: a minimum cut.

    Carries may be in the cut. They are not returned.

    Args:
      graph: the step.
      made: the values that may be kept.
      read: the values that the derivative reads.
      recomputable: whether an equation may be computed again.
    """
    may = {*made, *graph.carry}
    edges: dict[tuple[Any, Any], int] = {}
    edges |= {((v, 0), (v, 1)): width(v) for v in graph.carry}
    for eqn in graph.eqns:
        for v in (v for v in eqn.outvars if not isinstance(v, DropVar)):
            edges[(v, 0), (v, 1)] = width(v) if v in may else MANY
            edges |= {((u, 1), (v, 0)): MANY for u in variables(eqn.invars)}
    starts = [v for e in graph.eqns if not recomputable(e) for v in e.outvars]
    starts = [v for v in starts if not isinstance(v, DropVar)]
    ends = [v for v in read if v in may]
    cut = cheapest_cut(edges, [*graph.carry, *starts], ends)
    return [v for v in made if v in cut]
