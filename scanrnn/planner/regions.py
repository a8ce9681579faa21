"""Where contributions from outside the recurrence enter it.

A *region* is a contraction (or an equation that gathers or rearranges a weight)
with the sums, casts and splits that follow it; its ends are the *cuts*. What
weights and hoisted inputs contribute within a region is added once, at its cuts.

Gains need not make a region: each has a cotangent as long as the sequence, only to be
summed. Then their gradients are summed in the loop, where a step's arrays are at hand.
"""

from __future__ import annotations

from typing import NamedTuple

from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.planner import ops, tangent
from scanrnn.planner.graph import CARRY, TIME, variables

# Single-operand steps a contribution may be carried through without a primal.
_PASSES_ON = ops.ADDITIVE | {"convert_element_type", "neg"}


class Regions(NamedTuple):
    """Equations of all regions, and the variables at their ends."""

    eqns: set[JaxprEqn]
    cuts: dict[Var, None]  # an ordered set
    heavy_cuts: dict[Var, None]  # the cuts that end a contraction


def find_regions(loop, bits, gains: bool = False) -> Regions:
    """Equations where outside contributions enter, and where they end up."""
    consumers = loop.consumers()
    weight_borne = _weight_borne(loop, bits)
    regions = Regions(set(), {}, {})
    for eqn in loop.eqns:
        ins = variables(eqn.invars)
        heavy = ops.is_heavy(eqn)
        if not any(bits[v] & CARRY for v in ins) or not ops.is_movable(eqn):
            continue
        if heavy and any(bits[v] == TIME for v in ins):
            for v in filter(ops.is_inexact, eqn.outvars):
                regions.heavy_cuts.update(dict.fromkeys(_follow(v, consumers)[0]))
            continue
        gain = eqn.primitive.name in ops.POINTWISE and not gains
        if not heavy and (gain or not any(v in weight_borne for v in ins)):
            continue
        regions.eqns.add(eqn)
        for v in eqn.outvars:
            if isinstance(v, DropVar) or not ops.is_inexact(v):
                continue
            ends, path = _follow(v, consumers)
            regions.eqns.update(path)
            regions.cuts.update(dict.fromkeys(ends))
            if heavy:
                regions.heavy_cuts.update(dict.fromkeys(ends))
    return regions


def _follow(v, consumers) -> tuple[list[Var], list[JaxprEqn]]:
    """Where a contribution that starts at `v` can be added last.

    It is carried through sums, casts and splits as long as nothing else reads
    the value on the way, and stops after the last sum: what is added there
    enters together with it, so one array does for all.
    """
    ends, committed, path = [v], [], []
    while True:
        users = consumers.get(v, [None])
        if len(users) != 1 or users[0] is None:
            return ends, committed
        (eqn,) = users
        if eqn.primitive.name == "split":
            parts = [o for o in eqn.outvars if not isinstance(o, DropVar)]
            follows = [_follow(o, consumers) for o in parts]
            if any(p for _, p in follows):
                ends = [end for e, _ in follows for end in e]
                committed = [*path, eqn, *(k for _, p in follows for k in p)]
            return ends, committed
        if eqn.primitive.name not in _PASSES_ON:
            return ends, committed
        if not ops.is_inexact(eqn.outvars[0]):
            return ends, committed
        path.append(eqn)
        (v,) = eqn.outvars
        if eqn.primitive.name in ops.ADDITIVE:
            ends, committed = [v], list(path)


def _weight_borne(loop, bits) -> set[Var]:
    """Values outside the recurrence that a weight's tangent reaches."""
    borne = {w for w in loop.weights if ops.is_inexact(w)}
    for eqn in loop.eqns:
        if any(bits[v] & CARRY for v in variables(eqn.invars)):
            continue
        nonzero = [not ops.is_literal(a) and a in borne for a in eqn.invars]
        if tangent.moves(eqn, nonzero):
            borne |= {v for v in eqn.outvars if ops.is_inexact(v)}
    return borne
