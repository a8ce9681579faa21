"""One step inside a kernel: its equations, as Mosaic takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.executors._kernel_forms import COLUMNS, Matrix
from scanrnn.planner import ops
from scanrnn.planner.graph import Graph, eval_eqn, needed
from scanrnn.planner.wide_sums import wide


def step(graph: Graph, known: Mapping[Var, Any]) -> list:
    """The next carry and the ys of one step, given its inputs by variable."""
    values, made = dict(known), graph.producers()

    def read(atom):
        return atom.val if ops.is_literal(atom) else values[atom]

    for eqn in needed(graph.eqns, graph.outs):
        ins = list(map(read, eqn.invars))
        if eqn.primitive.name in ("dot_general", ops.PRODUCT):
            outs = [_product(eqn, *ins, made.get(eqn.invars[0]))]
        else:
            outs = eval_eqn(eqn, ins)
        pairs = zip(eqn.outvars, outs, strict=True)
        values |= {v: out for v, out in pairs if not isinstance(v, DropVar)}
    return list(map(read, graph.outs))


def _product(eqn: JaxprEqn, a, b, maker: JaxprEqn | None):
    """A product: accumulated in float32, and rounded to what the plan says."""
    dtype = ops.aval(eqn.outvars[0]).dtype
    numbers, precision = (eqn.params[p] for p in ("dimension_numbers", "precision"))

    def part(a, b):
        kind = wide(dtype)
        return lax.dot_general(a, b, numbers, precision, preferred_element_type=kind)

    if not isinstance(b, Matrix):
        return part(a, b).astype(dtype)
    total = None
    for start, size in _blocks(a.shape[1], maker):
        made = part(a[:, start : start + size], b.rows(start, size))
        total = made if total is None else total + made
    return total.astype(dtype)


def _blocks(depth: int, maker: JaxprEqn | None) -> list[tuple[int, int]]:
    """Parts of the depth of a product, each as deep as a matrix unit.

    Those of what is joined alternate: what an elementwise step makes of the same
    features is ready at the same time, and multiplied while it makes the next ones.
    """
    parts = [depth]
    if maker is not None and maker.primitive.name == "concatenate":
        if maker.params["dimension"] == 1:
            parts = [ops.aval(v).shape[1] for v in maker.invars]
    if any(size % COLUMNS for size in parts):
        return [(0, depth)]
    starts = [sum(parts[:i]) for i in range(len(parts))]
    found = [
        (at - start, i, at)
        for i, (start, size) in enumerate(zip(starts, parts, strict=True))
        for at in range(start, start + size, COLUMNS)
    ]
    return [(at, COLUMNS) for *_, at in sorted(found)]
