"""Make graphs by tracing: of a function of values by variable, or of another graph."""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import jax
from jax.extend.core import DropVar, JaxprEqn, Literal, Var

from scanrnn.planner.ir import compat
from scanrnn.planner.ir.graph import Env, Graph, needed, struct, type_Atom, variables


def retrace(graph: Graph, rule: Callable, at: Collection) -> tuple[Graph, list]:
    """Replace the equations `at`: `rule(eqn, env)` gives their outputs.

    Only the rules are traced; all other equations are kept. If `at` is empty, only
    unused equations are dropped. Returns the new graph, whose inputs are the same
    variables, and the values of the constants that the rewriting exposed. These become
    the last weights.
    """
    if not at:
        return used(graph), []
    slots = [eqn for eqn in graph.eqns if eqn in at]
    made = (v for eqn in graph.eqns if eqn not in at for v in eqn.outvars)
    names = (*graph.inputs, *(v for v in made if not isinstance(v, DropVar)))

    def run(*values):
        env = Env(graph.eqns, zip(names, values, strict=True))
        found = []
        for eqn in slots:
            found += (outs := rule(eqn, env))
            env.update(zip(eqn.outvars, outs, strict=True))
        return found

    jaxpr, consts = compat.opened(jax.make_jaxpr(run)(*map(struct, names)))
    given = dict(zip(jaxpr.invars, names, strict=True))
    old = itertools.chain.from_iterable(eqn.outvars for eqn in slots)
    after = dict(zip(old, _new(given, jaxpr.outvars), strict=True))
    eqns = [_with_names(_with_names(e, given), after) for e in jaxpr.eqns]
    graph = dataclasses.replace(
        graph,
        weights=(*graph.weights, *jaxpr.constvars),
        eqns=_placed(graph.eqns, at, eqns, after),
        carry_out=_new(after, graph.carry_out),
        ys=_new(after, graph.ys),
    )
    return used(graph), list(consts)


def _placed(old, at, new, after: Mapping[Var, type_Atom]) -> tuple[JaxprEqn, ...]:
    """Equations with new ones in the places of `at`, each after what it reads.

    A new one may read what an old one makes later. `after` has what is read in place of
    the outputs of `at`.
    """
    kept = {e: _with_names(e, after) for e in old if e not in at}
    makers = {v: e for e in (*new, *kept.values()) for v in e.outvars}
    done: dict[JaxprEqn, None] = {}
    for eqn in old:
        outs = _new(after, eqn.outvars)
        todo = [kept[eqn]] if eqn in kept else needed(new, outs)[::-1]
        while todo:
            last = todo[-1]
            before = (makers[v] for v in variables(last.invars) if v in makers)
            before = [e for e in before if e not in done]
            if last in done or not before:
                done[todo.pop()] = None
            else:
                todo += before[:1]
    return tuple(done)


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
    return Graph(
        weights=_new(names, graph.weights),
        carry=_new(names, graph.carry),
        xs=_new(names, graph.xs),
        eqns=tuple(_with_names(e, names) for e in graph.eqns),
        carry_out=_new(names, graph.carry_out),
        ys=_new(names, graph.ys),
    )


def _with_names(eqn: JaxprEqn, names: Mapping) -> JaxprEqn:
    ins, outs = _new(names, eqn.invars), _new(names, eqn.outvars)
    return eqn.replace(invars=list(ins), outvars=list(outs))


def _new(names: Mapping, atoms: Iterable) -> tuple:
    return tuple(a if isinstance(a, Literal) else names.get(a, a) for a in atoms)
