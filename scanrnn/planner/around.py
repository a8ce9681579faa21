"""A step without what can be done for many steps at once: before its loop, and after.

Before it goes what time inputs alone make, after it the joining of what is stacked.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner import ops
from scanrnn.planner.graph import TIME, Graph, free, needed, variables


def around(graph: Graph, pays: bool, sums: bool = False) -> tuple[Graph, Graph, Graph]:
    """What makes time inputs of a step, the step, and what makes ys of those it has.

    All of it is the step if that does not pay, but for sums over axes if these do.
    """
    early = _early(graph) if pays or sums else set()
    early = early if pays else _for_sums(early, graph)
    joins = joined(graph) if pays else []
    ys = parts(graph, joins)
    after = Graph((), (), ys, tuple(joins), (), graph.ys)
    eqns = [e for e in graph.eqns if e not in early]
    eqns = needed(eqns, (*graph.carry_out, *ys))
    read = free(eqns, (*graph.carry_out, *ys))
    made = tuple(v for e in graph.eqns if e in early for v in e.outvars if v in read)
    xs = (*(v for v in graph.xs if v in read), *made)
    step = dataclasses.replace(graph, xs=xs, eqns=tuple(eqns), ys=ys)
    return graph.part(made), step, after


def joined(graph: Graph) -> list[JaxprEqn]:
    """Equations that only join what is stacked."""
    return [e for e in graph.eqns if _joins(e) and e.outvars[0] in graph.ys]


def parts(graph: Graph, joins: Iterable[JaxprEqn]) -> tuple[Var, ...]:
    """What a step stacks, without what some equations join of it."""
    made = {v: variables(e.invars) for e in joins for v in e.outvars}
    found = (made.get(v, [v]) for v in variables(graph.ys))
    return tuple(dict.fromkeys(itertools.chain(*found)))


def own_rows(graph: Graph, block: int) -> list[Var]:
    """Rows that each step is to make itself where a trip has several.

    XLA for GPU would let the kernel that stacks those of all steps make them again, of
    what products gave it: for an LSTM four pieces of each sum. That kernel takes long
    to compile, too. With norms it takes more kernels to make a row than to make it
    again.
    """
    if block == 1 or any(map(ops.is_reduction, graph.eqns)):
        return []
    shapes = {ops.aval(v).shape for v in graph.carry}
    rows = parts(graph, joined(graph))
    return [v for v in rows if ops.is_inexact(v) and ops.aval(v).shape in shapes]


def _early(graph) -> set:
    """Equations of time inputs alone, but for what they would make larger."""
    bits, made, early = graph.depends(), {*graph.weights, *graph.xs}, set()
    for eqn in graph.eqns:
        fits = bits[eqn] == TIME and made.issuperset(variables(eqn.invars))
        if fits and ops.is_movable(eqn) and not ops.grows(eqn):
            early.add(eqn)
            made.update(eqn.outvars)
    return early


def _for_sums(early, graph) -> set:
    """Those that sum over axes, what they need, and what is made of sums alone."""
    sums = {e for e in graph.eqns if e in early and ops.is_reduction(e)}
    made = {v for e in sums for v in e.outvars}
    for eqn in graph.eqns:
        if eqn in early and made.issuperset(variables(eqn.invars)):
            made.update(eqn.outvars)
    return set(needed(graph.eqns, made))


def _joins(eqn) -> bool:
    apart = len(set(variables(eqn.invars))) == len(eqn.invars)
    return eqn.primitive.name == "concatenate" and apart
