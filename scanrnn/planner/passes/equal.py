"""Compute equal values of a step once (`h.astype(bf16)` for each gate).

XLA does this by itself. But products of equal values can be merged only if these are
one value, and a value that stands twice would count as two where a plan compares what a
loop reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Hashable, Mapping

import numpy as np
from jax.extend.core import DropVar, JaxprEqn, Literal, Var

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.keys import UnknownError, key_of
from scanrnn.planner.ir.retrace import renamed, used


def merged(graph: Graph, names: Container[str] | None = None) -> Graph:
    """The step with equal equations computed once, and without unused ones.

    With `names`, only primitives of these names are compared.
    """
    first: dict[Hashable, JaxprEqn] = {}
    same: dict[Var, Var] = {}
    for eqn in graph.eqns:
        compared = names is None or eqn.primitive.name in names
        key = _key(eqn, same) if compared else eqn
        found = first.setdefault(key, eqn)
        if found is not eqn:
            # Each of two splits, say, may leave out other parts.
            pairs = zip(found.outvars, eqn.outvars, strict=True)
            outs = [b if isinstance(a, DropVar) else a for a, b in pairs]
            first[key] = found.replace(outvars=outs)
            same.update(zip(eqn.outvars, outs, strict=True))
    if same:
        graph = dataclasses.replace(graph, eqns=tuple(first.values()))
        graph = renamed(graph, same)
    return used(graph)


def _key(eqn: JaxprEqn, same: Mapping[Var, Var]) -> Hashable:
    """A key; equations with equal keys have equal results.

    `same` maps a variable to an earlier one with the same value.
    """
    if eqn.effects or ops.has_subjaxpr(eqn):
        return eqn
    ins = tuple(
        (np.asarray(a.val).tobytes(), ops.aval(a))
        if isinstance(a, Literal)
        else same.get(a, a)
        for a in eqn.invars
    )
    try:
        params = key_of(eqn.params)
    except UnknownError:
        return eqn
    return eqn.primitive, ins, params, compat.context(eqn)
