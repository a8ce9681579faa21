"""What the tangents of a step read, if they may read the values that are given."""

from __future__ import annotations

import dataclasses

from jax.extend.core import DropVar, Var

from scanrnn.planner.derivative.gradient import Derivative
from scanrnn.planner.derivative.steps import Step, Steps
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.batching import REFUSALS
from scanrnn.planner.ir.graph import free


def read(draft, found) -> tuple[frozenset[Var], frozenset[Var], dict]:
    """What the tangent program reads if all inputs have tangents: inside, and outside.

    Also the steps that tell this, without the inputs that they do not read. JAX can
    differentiate some functions by some operands only. If it cannot differentiate by
    all at once, then everything counts as read.
    """
    draft = _reading(draft, found)
    steps, graph = Steps(draft), draft.graph
    inner, outer = _active_inside(draft), {*graph.weights, *graph.xs}
    read, made = [], {}
    for make, active in ((steps.inside, inner), (steps.outside, outer)):
        names, step = _read_by(make, active, draft.read_inside)
        read.append(names)
        if step is not None:
            made[make.__name__, frozenset(step.active)] = step
    return read[0], read[1], made


def may_be_kept(draft) -> list[Var]:
    """The values of a step that may be kept."""
    graph = draft.graph
    made = [v for e in graph.eqns for v in e.outvars if not isinstance(v, DropVar)]
    return [v for v in made if graph.depends[v] and v not in draft.internal]


def read_of_all(draft, saved) -> list[Var]:
    """The values of the loop that its tangents read, if they may read all of them."""
    made = may_be_kept(draft)
    draft = _reading(draft, dict.fromkeys([*saved, *made]))
    active = _active_inside(draft)
    read, _ = _read_by(Steps(draft).inside, active, draft.read_inside)
    return [v for v in made if v in read]


def _reading(draft, found) -> Derivative:
    """The derivative, if it may read all inputs of the loop and the values `found`."""
    readable = frozenset((*draft.graph.inputs, *found))
    every = tuple(range(len(draft.graph.carry)))
    read = {"read_inside": readable, "read_outside": readable}
    return dataclasses.replace(draft, saved=tuple(found), carry_saved=every, **read)


def _active_inside(draft) -> set[Var]:
    return {*draft.graph.carry, *draft.cuts, *draft.inner_weights, *draft.inner_xs}


def _read_by(make, active, readable) -> tuple[frozenset[Var], Step | None]:
    """The variables of `readable` that a step reads, and the step without others."""
    try:
        step = make(frozenset(v for v in active if ops.is_inexact(v)))
    except REFUSALS:
        return readable, None
    found = {*free(step.graph.eqns, step.graph.outs)}
    xs = tuple(v for v in step.graph.xs if v in found or v not in readable)
    graph = dataclasses.replace(step.graph, xs=xs)
    return readable & found, step._replace(graph=graph)
