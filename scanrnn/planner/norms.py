"""The loop for the cotangents of norms: one piece of steps after the other.

New cotangents reuse the buffers of the incoming ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from scanrnn.planner.bodies import Body
from scanrnn.planner.ir.graph import Graph, struct, variables_for
from scanrnn.planner.ir.retrace import graph_of
from scanrnn.planner.ir.rows import Rows, pair_up
from scanrnn.planner.loops import Loop
from scanrnn.planner.motion.over_time import stage_over_time
from scanrnn.planner.passes.wide_sums import in_wide_sums, rounded, wide_type


def norms_body(
    norms: Graph, loop: Loop, active: Sequence[Var], given: Iterable[Any]
) -> tuple[Body, dict[Var, Any]]:
    """Make the loop for the cotangents of norms; a step of it is a piece.

    It reads pieces of the time inputs of the norms and of the cotangents of `given`
    outputs. It sums cotangents of the weights among the inputs `active`, which come
    first. The loop that follows the norms says how many steps make a piece. Also
    returns its constants, which are its last weights.
    """
    size, given = loop.norm_steps, tuple(given)
    assert size is not None
    summed = [v for v in active if v in norms.weights]
    arrays = (*norms.xs, *given)
    names = variables_for({v: struct(v, size) for v in arrays})
    sums = list(variables_for({v: wide_type(struct(v)) for v in summed}).values())
    n = len(summed)

    def step(values):
        inputs = {v: values[names.get(v, v)] for v in norms.inputs}
        cts = {v: values[names[v]] for v in given}
        found = pulled(norms, size, active, inputs, cts)
        before = [values[v] for v in sums]
        more = map(rounded, found[:n], before)
        return [*map(jnp.add, before, more), *found[n:]]

    graph, consts = graph_of(step, norms.weights, sums, list(names.values()))
    over = pair_up(graph.ys, [names[v] for v in given]) if loop.in_place else {}
    return Body(graph, Rows(loop.length // size, over=over)), consts


def of_active(graph: Graph, length, fixed, active: Sequence[Var], *values) -> list:
    """The outputs as a function of the inputs `active`; the others are fixed."""
    values = dict(zip(active, values, strict=True))
    return stage_over_time(graph, {**fixed, **values}, length)


def pulled(graph: Graph, length, active: Sequence[Var], inputs, given) -> list:
    """The cotangents of some inputs, given those of some outputs, by variable."""

    def asked(*values):
        outs = of_active(graph, length, inputs, active, *values)
        outs = dict(zip(graph.ys, outs, strict=True))
        return [outs[v] for v in given]

    _, pull = jax.vjp(asked, *(inputs[v] for v in active))
    return list(in_wide_sums(pull, graph)(list(given.values())))
