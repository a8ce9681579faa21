"""Values of all steps at once, given arrays of some variables at all steps."""

from __future__ import annotations

import jax.numpy as jnp

from scanrnn.executors.parallel import scans
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Graph, Values, variables
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.motion.over_time import stage_over_time


def over_time(graph: Graph, ys, values: Values, length) -> list:
    """The values of `ys` at all steps, given those of weights and of other variables.

    The values of weights are those of one step, the others are arrays of all steps.
    Known values take the place of the equations that make them.
    """
    part = graph.part(tuple(ys), arrays_of(graph, values))
    return stage_over_time(part, values, length)


def record(graph: Graph, k: int, start, found, rows: Rows, values: dict):
    """Add a leaf's values before and after each step, `found`. Returns the last one."""
    values[graph.carry[k]] = scans.before(found, start, rows)
    for after in variables([graph.carry_out[k]]):
        values.setdefault(after, found)
    return found[rows.last]


def arrays_of(graph: Graph, values: Values) -> list:
    """The variables whose values are arrays of all steps: all but the weights."""
    return [v for v in values if v not in graph.weights]


def stacked(graph: Graph, values: Values, length) -> list:
    """The ys of a graph at all steps; those made of weights alone at one step."""
    timed = [v for v in variables(graph.ys) if graph.depends[v]]
    found = dict(zip(timed, over_time(graph, timed, values, length), strict=True))
    env = Env(graph.eqns, {v: values[v] for v in graph.weights})

    def of(atom):
        known = not ops.is_literal(atom) and atom in found
        return found[atom] if known else jnp.expand_dims(env.read(atom), 0)

    return list(map(of, graph.ys))
