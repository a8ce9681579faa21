"""Make graphs by tracing: of a function of values by variable, or of another graph."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
from jax.extend.core import Literal, Var

from scanrnn.planner.ir import compat
from scanrnn.planner.ir.graph import Env, Graph, needed, struct


def retrace(graph: Graph, rule: Callable, at: Collection) -> tuple[Graph, list]:
    """Trace the graph again; `rule(eqn, env)` gives the outputs of the equations `at`.

    If `at` is empty, only unused equations are dropped. Returns the new graph, whose
    inputs are the same variables, and the values of the constants that the rewriting
    exposed. These become the last weights.
    """
    if not at:
        return used(graph), []

    def run(values):
        env = Env(graph.eqns, values)
        for eqn in graph.eqns:
            if eqn in at:
                env.update(zip(eqn.outvars, rule(eqn, env), strict=True))
            else:
                env.run([eqn])
        return list(map(env.read, graph.outs))

    new, consts = graph_of(run, graph.weights, graph.carry, graph.xs)
    return new, list(consts.values())


def used(graph: Graph) -> Graph:
    """The graph without unused equations."""
    eqns = tuple(needed(graph.eqns, graph.outs))
    same = len(eqns) == len(graph.eqns)
    return graph if same else dataclasses.replace(graph, eqns=eqns)


def graph_of(f: Callable, weights: Sequence, carry: Sequence, xs: Sequence):
    """The graph of `f`, a function from values by variable to the next carry and ys.

    The inputs of the graph are the given variables. Constants become the last weights.
    Returns the graph, and the constants by variable.
    """
    names = (*weights, *carry, *xs)

    def run(*values):
        return f(OrderedDict(zip(names, values, strict=True)))

    jaxpr, consts = compat.opened(jax.make_jaxpr(run)(*map(struct, names)))
    graph = Graph.of(jaxpr, len(weights), len(carry))
    graph = dataclasses.replace(graph, eqns=tuple(needed(graph.eqns, graph.outs)))
    graph = renamed(graph, dict(zip(jaxpr.invars, names, strict=True)))
    return graph, dict(zip(jaxpr.constvars, consts, strict=True))


def renamed(graph: Graph, names: Mapping[Var, Var]) -> Graph:
    """The same graph with other variables in place of some."""

    def new(atoms) -> tuple:
        return tuple(a if isinstance(a, Literal) else names.get(a, a) for a in atoms)

    return Graph(
        weights=new(graph.weights),
        carry=new(graph.carry),
        xs=new(graph.xs),
        eqns=tuple(
            e.replace(invars=list(new(e.invars)), outvars=list(new(e.outvars)))
            for e in graph.eqns
        ),
        carry_out=new(graph.carry_out),
        ys=new(graph.ys),
    )
