"""Where each equation runs: before the loop, in it, or after it.

Time-parallel contractions (and what only follows them) move before the loop;
readout contractions (and what follows them) move after it; both then run once,
batched over time. Cheap pointwise work moves only when fewer bytes cross the
loop's edge: every array that crosses is written and read once per sequence.
"""

from __future__ import annotations

import dataclasses

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner import ops
from scanrnn.planner.crossing import cheapest_crossing
from scanrnn.planner.graph import (
    CARRY,
    TIME,
    WEIGHTS,
    Graph,
    has_own_rule,
    needed,
    variables,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """The cut of a step into stages, by the variables that cross.

    `constants` are computed once from weights; `hoisted` are computed before
    the loop for all steps; `loop` is what remains, its `ys` are stacked; the
    step's own outputs are computed after the loop from all of these.
    """

    graph: Graph
    constants: tuple[Var, ...]
    hoisted: tuple[Var, ...]
    loop: Graph


def classify(graph: Graph, hoist: bool = True, sink: bool = True) -> Stages:
    """Cut a step into stages."""
    bits = graph.depends()
    hoisted = _hoisted(graph, bits) if hoist else set()
    sunk = _sunk(graph, bits) if sink else set()
    return _cut(graph, bits, hoisted, sunk)


def _hoisted(graph, bits) -> set[JaxprEqn]:
    """Time-parallel contractions and the movable equations after them."""
    movable, moved = set(graph.xs), set()
    made_by_moved: set[Var] = set()
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        if bits_of(eqn, bits) == 0:
            movable.update(eqn.outvars)
            continue
        fits = all(v in movable or bits[v] == 0 for v in ins)
        if bits_of(eqn, bits) != TIME or not fits or not ops.is_movable(eqn):
            continue
        movable.update(eqn.outvars)
        if ops.is_heavy(eqn) or any(v in made_by_moved for v in ins):
            moved.add(eqn)
            made_by_moved.update(eqn.outvars)
    return moved


def _sunk(graph, bits) -> set[JaxprEqn]:
    """Readout contractions, what follows them, and residual sums."""
    recurrent = set(needed(graph.eqns, graph.carry_out))
    consumers, owned = graph.consumers(), _owned_weights(graph, bits)
    can: set[JaxprEqn] = set()
    for eqn in reversed(graph.eqns):
        if eqn in recurrent or not bits_of(eqn, bits) & CARRY:
            continue
        if not owned.isdisjoint(variables((*eqn.invars, *eqn.outvars))):
            continue
        users = [u for v in eqn.outvars for u in consumers.get(v, ())]
        if ops.is_movable(eqn) and all(u is None or u in can for u in users):
            can.add(eqn)
    carried = {*graph.carry, *variables(graph.carry_out)}
    sunk: set[JaxprEqn] = set()
    made: set[Var] = set()
    for eqn in (e for e in graph.eqns if e in can):
        recurrent_ins = [v for v in variables(eqn.invars) if bits[v] & CARRY]
        reads_time = any(bits[v] == TIME for v in variables(eqn.invars))
        residual = reads_time and all(v in carried or v in made for v in recurrent_ins)
        if ops.is_heavy(eqn) or residual or any(v in made for v in recurrent_ins):
            sunk.add(eqn)
            made.update(eqn.outvars)
    return sunk


def _owned_weights(graph, bits) -> set[Var]:
    """What a `jax.custom_vjp` makes of weights: not to be stacked for all steps."""
    owned: set[Var] = set()
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        if all(bits[v] == WEIGHTS or v in owned for v in ins):
            if has_own_rule(eqn) or not owned.isdisjoint(ins):
                owned.update(eqn.outvars)
    return owned


def _cut(graph, bits, hoisted, sunk) -> Stages:
    """Turn sets of moved equations into the variables that cross each edge."""
    made_before = {v for e in hoisted for v in e.outvars}
    made_after = {v for e in sunk for v in e.outvars}
    readout = [a for e in sunk for a in variables(e.invars)] + variables(graph.ys)
    stacked = _unique(v for v in readout if bits[v] & CARRY and v not in made_after)
    outs = (*graph.carry_out, *stacked)
    stay = needed(graph.eqns, outs, {*made_before, *graph.carry, *graph.xs})
    crossing = cheapest_crossing(
        [e for e in graph.eqns if e in hoisted],
        {*graph.xs},
        [v for v in _reads(stay, outs) if bits[v] == TIME],
    )
    readers = {v for e in sunk for v in variables(e.invars)} | {*variables(graph.ys)}
    producers = graph.producers()
    crossing = {
        v if v in readers else _before_bias(v, producers, bits) for v in crossing
    }
    eqns = needed(graph.eqns, outs, {*crossing, *graph.carry, *graph.xs})
    eqns = [e for e in eqns if any(bits[v] for v in e.outvars) or _grows(e)]
    reads = _reads(eqns, outs)
    loop = Graph(
        weights=tuple(v for v in reads if bits[v] == 0),
        carry=graph.carry,
        xs=tuple(v for v in reads if bits[v] == TIME),
        eqns=tuple(eqns),
        carry_out=graph.carry_out,
        ys=stacked,
    )
    after = needed(graph.eqns, graph.ys, {*made_before, *stacked, *graph.xs})
    used = {*loop.xs, *_reads(after, graph.ys)}
    return Stages(
        graph=graph,
        constants=loop.weights,
        hoisted=tuple(
            v for e in graph.eqns for v in e.outvars if v in made_before & used
        ),
        loop=loop,
    )


def _before_bias(v, producers, bits) -> Var:
    """`x @ W` in place of `x @ W + b`: in the loop the sum is part of a fusion.

    Before it, it would be a pass over the whole sequence and a second array.
    """
    while (eqn := producers[v]).primitive.name in ops.ADDITIVE:
        timed = [a for a in variables(eqn.invars) if bits[a] == TIME]
        if len(timed) != 1 or timed[0] not in producers:
            break
        before, after = ops.aval(timed[0]), ops.aval(v)
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            break
        (v,) = timed
    return v


def _reads(eqns, outs) -> tuple[Var, ...]:
    """What equations and outputs read that the equations do not make."""
    made = {v for e in eqns for v in e.outvars}
    read = [v for e in eqns for v in variables(e.invars)] + variables(outs)
    return _unique(v for v in read if v not in made)


def _grows(eqn) -> bool:
    """Weights-only equations whose result is larger than what they read.

    A bias broadcast over the batch is free inside a fusion; carried into the
    loop it would be a `[B, H]` array to load at every step.
    """
    grows = eqn.primitive.name in ("broadcast_in_dim", "iota")
    read = sum(ops.bytes_of(v) for v in variables(eqn.invars))
    return grows and sum(ops.bytes_of(v) for v in eqn.outvars) > read


def bits_of(eqn, bits) -> int:
    """What an equation depends on: the union over its inputs."""
    kind = 0
    for v in variables(eqn.invars):
        kind |= bits[v]
    return kind


def _unique(items) -> tuple:
    return tuple(dict.fromkeys(items))
