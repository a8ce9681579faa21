"""Take out of a step what can run for many steps at once, before or after its loop.

What depends on time inputs alone runs before the loop. Equations that only join what
the loop stacks run after it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.costs import grows
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import TIME, Graph, free, needed, variables
from scanrnn.planner.motion.crossing import out_of_loop
from scanrnn.planner.passes.equal import merged


def around(graph: Graph, pays: bool, sums: bool = False) -> tuple[Graph, Graph, Graph]:
    """Split a step into what runs before its loop, the loop, and what runs after it.

    Args:
      graph: the step.
      pays: whether equations of time inputs alone run before the loop, and equations
        that only join ys run after it.
      sums: whether sums over axes of time inputs run before the loop even if not
        `pays`, with what they need. Other equations of time inputs join them if the
        step then reads no more bytes.

    Returns:
      Three graphs: the one before makes new time inputs of the step, the one after
      makes the ys from those of the step.
    """
    graph = merged(graph, ops.ELEMENTWISE) if sums else graph
    early = _early(graph) if pays or sums else set()
    early = early if pays else _for_sums(early, graph)
    step, after = joins_after(graph, output_joins(graph) if pays else [])
    eqns = needed([e for e in step.eqns if e not in early], step.outs)
    read = free(eqns, step.outs)
    made = tuple(v for e in graph.eqns if e in early for v in e.outvars if v in read)
    xs = (*(v for v in graph.xs if v in read), *made)
    return graph.part(made), dataclasses.replace(step, xs=xs, eqns=tuple(eqns)), after


def joins_after(graph: Graph, joins: Sequence[JaxprEqn]) -> tuple[Graph, Graph]:
    """A step without equations that only join its ys, and these, to run after it."""
    ys = stacked_parts(graph, joins)
    eqns = needed(graph.eqns, (*graph.carry_out, *ys))
    after = Graph((), (), ys, tuple(joins), (), graph.ys)
    return dataclasses.replace(graph, eqns=tuple(eqns), ys=ys), after


def output_joins(graph: Graph) -> list[JaxprEqn]:
    """The equations that only join values into one stacked output."""
    return [e for e in graph.eqns if _joins(e) and e.outvars[0] in graph.ys]


def stacked_parts(graph: Graph, joins: Iterable[JaxprEqn]) -> tuple[Var, ...]:
    """What a step stacks, with the parts in place of what `joins` joins from them."""
    made = {v: variables(e.invars) for e in joins for v in e.outvars}
    found = (made.get(v, [v]) for v in variables(graph.ys))
    return tuple(dict.fromkeys(itertools.chain(*found)))


def own_rows(graph: Graph, block: int) -> list[Var]:
    """The rows that each step computes itself, if a trip holds several steps.

    Otherwise XLA for GPU lets the kernel that stacks the rows of all steps compute
    them again from the products: for an LSTM, from four pieces of each sum. That kernel
    also takes long to compile. With norms this is not done: then a row takes more
    kernels if each step computes it itself.
    """
    if block == 1 or any(map(ops.is_reduction, graph.eqns)):
        return []
    shapes = {ops.aval(v).shape for v in graph.carry}
    rows = stacked_parts(graph, output_joins(graph))
    return [v for v in rows if ops.is_inexact(v) and ops.aval(v).shape in shapes]


def _early(graph) -> set:
    """The movable equations of time inputs alone, except broadcasts that grow."""
    bits, made, early = graph.depends, {*graph.weights, *graph.xs}, set()
    for eqn in graph.eqns:
        fits = bits[eqn] == TIME and made.issuperset(variables(eqn.invars))
        if fits and ops.is_movable(eqn) and not grows(eqn):
            early.add(eqn)
            made.update(eqn.outvars)
    return early


def _for_sums(early, graph) -> set:
    """The equations of `early` that leave the loop if only sums are taken out.

    These are sums over axes, equations that read only their results, and what these
    need. Others follow if the step then reads no more bytes.
    """
    sums = {e for e in graph.eqns if e in early and ops.is_reduction(e)}
    made = {v for e in sums for v in e.outvars}
    for eqn in graph.eqns:
        if eqn in early and made.issuperset(variables(eqn.invars)):
            made.update(eqn.outvars)
    return out_of_loop(graph, early, set(needed(graph.eqns, made)))


def _joins(eqn) -> bool:
    apart = len(set(variables(eqn.invars))) == len(eqn.invars)
    return eqn.primitive.name == "concatenate" and apart
