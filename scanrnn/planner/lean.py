"""A step without what can be done for many steps at once: before its loop, and after.

Before it goes what time inputs alone make, after it the joining of what is stacked.
"""

from __future__ import annotations

import dataclasses

from scanrnn.planner import ops
from scanrnn.planner.graph import TIME, Graph, free, needed, variables


def lean(graph: Graph, pays: bool) -> tuple[Graph, Graph, Graph]:
    """What makes time inputs of a step, the step, and what makes ys of those it has.

    All of it is the step if that does not pay.
    """
    early = _early(graph) if pays else set()
    joins = [e for e in graph.eqns if pays and _joins(e) and e.outvars[0] in graph.ys]
    joined = {v for e in joins for v in e.outvars}
    parts = [v for e in joins for v in variables(e.invars)]
    parts += [v for v in variables(graph.ys) if v not in joined]
    ys = tuple(dict.fromkeys(parts))
    after = Graph((), (), ys, tuple(joins), (), graph.ys)
    eqns = [e for e in graph.eqns if e not in early]
    eqns = needed(eqns, (*graph.carry_out, *ys))
    read = free(eqns, (*graph.carry_out, *ys))
    made = tuple(v for e in graph.eqns if e in early for v in e.outvars if v in read)
    xs = (*(v for v in graph.xs if v in read), *made)
    step = dataclasses.replace(graph, xs=xs, eqns=tuple(eqns), ys=ys)
    return graph.part(made), step, after


def _early(graph) -> set:
    """Equations of time inputs alone, but for what they would make larger."""
    bits, made, early = graph.depends(), {*graph.weights, *graph.xs}, set()
    for eqn in graph.eqns:
        fits = bits[eqn] == TIME and made.issuperset(variables(eqn.invars))
        if fits and ops.is_movable(eqn) and not ops.grows(eqn):
            early.add(eqn)
            made.update(eqn.outvars)
    return early


def _joins(eqn) -> bool:
    apart = len(set(variables(eqn.invars))) == len(eqn.invars)
    return eqn.primitive.name == "concatenate" and apart
