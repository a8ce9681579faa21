"""One step inside a kernel: its equations, as Mosaic takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import DropVar, Literal

from scanrnn.planner import ops
from scanrnn.planner.graph import Graph, eval_eqn, needed
from scanrnn.planner.wide_sums import wide


def step(graph: Graph, known: Mapping[Any, Any]) -> list:
    """The next carry and the ys of one step."""
    values = dict(known)

    def read(atom):
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in needed(graph.eqns, graph.outs, values):
        ins = list(map(read, eqn.invars))
        rule = RULES.get(eqn.primitive.name, eval_eqn)
        for v, out in zip(eqn.outvars, rule(eqn, ins), strict=True):
            if not isinstance(v, DropVar):
                values[v] = out
    return list(map(read, graph.outs))


def _product(eqn, ins) -> list:
    """A product, accumulated in float32 and rounded to what the plan says."""
    made = ops.aval(eqn.outvars[0]).dtype
    out = lax.dot_general(
        *ins,
        eqn.params["dimension_numbers"],
        precision=eqn.params["precision"],
        preferred_element_type=wide(made),
    )
    return [out.astype(made)]


RULES = {"dot_general": _product, ops.PRODUCT: _product}
