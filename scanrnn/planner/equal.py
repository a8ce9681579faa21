"""Compute equal values of a step once.

XLA does this by itself. But a value that stands twice would count as two where a plan
compares what a loop reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.planner import compat, ops
from scanrnn.planner.graph import Graph
from scanrnn.planner.retrace import renamed


def merged(graph: Graph) -> Graph:
    """The step with each elementwise equation once."""
    first: dict[tuple, JaxprEqn] = {}
    same: dict[Var, Var] = {}
    for eqn in graph.eqns:
        found = first.setdefault(_key(eqn, same), eqn)
        if found is not eqn:
            same.update(zip(eqn.outvars, found.outvars, strict=True))
    return renamed(dataclasses.replace(graph, eqns=tuple(first.values())), same)


def _key(eqn: JaxprEqn, same: Mapping[Var, Var]) -> tuple:
    """A key; elementwise equations with equal keys have equal results.

    `same` maps a variable to an earlier one with the same value.
    """
    name = eqn.primitive.name
    if name not in ops.ELEMENTWISE or eqn.effects:
        return (eqn,)
    ins = tuple(
        (np.asarray(a.val).tobytes(), a.aval)
        if isinstance(a, Literal)
        else same.get(a, a)
        for a in eqn.invars
    )
    return name, ins, frozenset(eqn.params.items()), compat.context(eqn)
