"""Where contributions from outside the recurrence enter it.

A *region* is a contraction (or an equation that gathers or rearranges a weight) with
the sums, casts and splits that follow it. Its ends are the *cuts*. The contributions of
weights and hoisted inputs within a region are added once, at its cuts.

The cotangent of a cut is stacked. It may be larger than the weights and the time inputs
together, as for the state of a matrix memory. Then the gradient of the weights is
summed in the loop instead. Products of what is carried and of time inputs are in no
region, unless the rules ask for that (`gradients_after`). Gradients of gains may be
summed in the loop, too. So are those of weights of an equation that the planner does
not know. To batch it over time may take far more work and memory: a product with a
sparse matrix then has the places of the matrix once for each step. A sum with what is
computed from values too large for all steps, such as a matrix that each example chooses
by an index, is in no region either.
"""

from __future__ import annotations

from typing import NamedTuple

from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.planner.costs import excess
from scanrnn.planner.derivative import tangent
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import CARRY, TIME, Graph, variables
from scanrnn.planner.motion.moved import find_large

# A contribution can pass through these equations without their operands' values.
_PASSES_ON = ops.ADDITIVE | {"convert_element_type", "neg"}


class Regions(NamedTuple):
    """The equations of all regions, and the variables at their ends."""

    eqns: set[JaxprEqn]
    cuts: dict[Var, None]  # an ordered set
    heavy_cuts: dict[Var, None]  # the cuts that end a contraction


def find_regions(graph: Graph, sums: bool, after: bool = False) -> Regions:
    """Find the regions of a loop and their cuts.

    Args:
      graph: the step.
      sums: whether gradients of gains are summed in the loop.
      after: whether gradients of time inputs that multiply what is carried are computed
        after the reverse loop, too, if it stacks no more bytes then. A product of both
        is otherwise in no region.
    """
    bits = graph.depends
    if after and any(ops.is_heavy(e) and _is_timed(e, bits) for e in graph.eqns):
        found = _found(graph, sums, True)
        given = variables(graph.ys)
        # Cotangents of time inputs are stacked anyway.
        if excess((v for v in found.cuts if v not in given), graph.xs) <= 0:
            return found
    return _found(graph, sums, False)


def _found(graph: Graph, sums: bool, after: bool) -> Regions:
    bits, consumers = graph.depends, graph.consumers
    large = find_large(graph, bits)
    weight_borne = _weight_borne(graph, bits)
    regions = Regions(set(), {}, {})
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        heavy, timed = ops.is_heavy(eqn), _is_timed(eqn, bits)
        if not any(bits[v] & CARRY for v in ins) or not ops.is_movable(eqn):
            continue
        borne = set().union(*(weight_borne.get(v, ()) for v in ins))
        pointwise = eqn.primitive.name in ops.POINTWISE
        if not (heavy or (timed and after) or (borne and not (pointwise and sums))):
            continue
        if not ops.is_cheap_over_time(eqn):
            continue
        outs = [v for v in eqn.outvars if not isinstance(v, DropVar)]
        found = [
            _follow(v, consumers, large, ones=after)
            for v in filter(ops.is_inexact, outs)
        ]
        ends = dict.fromkeys(v for ends, _ in found for v in ends)
        if heavy:
            regions.heavy_cuts.update(ends)
        more = [v for v in ends if v not in regions.cuts]
        if heavy and timed and not after:
            continue
        if borne and excess(more, graph.xs, borne) > 0:
            continue
        regions.cuts.update(ends)
        regions.eqns.update([eqn, *(e for _, path in found for e in path)])
    return regions


def _is_timed(eqn: JaxprEqn, bits) -> bool:
    """Whether an equation reads what depends on time inputs alone, and the carry."""
    found = [bits[v] for v in variables(eqn.invars)]
    return TIME in found and any(b & CARRY for b in found)


def _follow(
    v, consumers, large: set[Var], ones: bool
) -> tuple[list[Var], list[JaxprEqn]]:
    """The last places where a contribution that starts at `v` can be added.

    Returns these variables, and the equations between `v` and them.

    The contribution passes through sums, casts and splits as long as nothing else reads
    the value on the way. It stops after the last sum: the terms of that sum then enter
    together, as one array. It also stops before a sum with one of the `large` values.
    """
    ends, committed, path = [v], [], []
    while True:
        users = consumers.get(v, [None])
        if len(users) != 1 or users[0] is None:
            return ends, committed
        (eqn,) = users
        if eqn.primitive.name == "split":
            parts = [o for o in eqn.outvars if not isinstance(o, DropVar)]
            follows = [_follow(o, consumers, large, ones) for o in parts]
            if any(p for _, p in follows):
                ends = [end for e, _ in follows for end in e]
                committed = [*path, eqn, *(k for _, p in follows for k in p)]
            return ends, committed
        passes = eqn.primitive.name in _PASSES_ON or (ones and _moves_ones(eqn))
        if not passes:
            return ends, committed
        terms = variables(eqn.invars)
        if not ops.is_inexact(eqn.outvars[0]) or not large.isdisjoint(terms):
            return ends, committed
        path.append(eqn)
        (v,) = eqn.outvars
        if eqn.primitive.name in ops.ADDITIVE:
            ends, committed = [v], list(path)


def _moves_ones(eqn: JaxprEqn) -> bool:
    """Whether an equation only adds or removes axes of size 1, as `jnp.matmul` does."""
    if eqn.primitive.name not in ("broadcast_in_dim", "reshape", "squeeze"):
        return False
    v, (out,) = eqn.invars[0], eqn.outvars
    shapes = (ops.aval(atom).shape for atom in (v, out))
    before, after = ([size for size in shape if size != 1] for shape in shapes)
    return before == after


def _weight_borne(graph, bits) -> dict[Var, set[Var]]:
    """Values off the recurrence that depend on weights, each with these weights."""
    borne = {w: {w} for w in graph.weights if ops.is_inexact(w)}
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        if any(bits[v] & CARRY for v in ins):
            continue
        nonzero = [not ops.is_literal(a) and a in borne for a in eqn.invars]
        if tangent.moves(eqn, nonzero):
            of = set().union(*(borne.get(v, ()) for v in ins))
            borne |= {v: of for v in eqn.outvars if ops.is_inexact(v)}
    return borne
