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
from scanrnn.planner.graph import CARRY, TIME, Graph, needed, variables


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

    def after_inputs(self) -> tuple[Var, ...]:
        """Every variable the after-loop stage may read, in a fixed order."""
        return (*self.graph.xs, *self.hoisted, *self.loop.ys)


def classify(graph: Graph, hoist: bool = True, sink: bool = True) -> Stages:
    """Cut a step into stages."""
    bits = graph.depends()
    hoisted = _hoisted(graph, bits) if hoist else set()
    sunk = _sunk(graph, bits) if sink else set()
    hoisted = _pull_back(graph, bits, hoisted, sunk)
    return _cut(graph, bits, hoisted, sunk)


def _hoisted(graph, bits) -> set[JaxprEqn]:
    """Time-parallel contractions and the movable equations after them."""
    movable, moved = set(graph.xs), set()
    made_by_moved: set[Var] = set()
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        if _kind(eqn, bits) == 0:
            movable.update(eqn.outvars)
            continue
        fits = all(v in movable or bits[v] == 0 for v in ins)
        if _kind(eqn, bits) != TIME or not fits or not ops.is_movable(eqn):
            continue
        movable.update(eqn.outvars)
        if ops.is_heavy(eqn) or any(v in made_by_moved for v in ins):
            moved.add(eqn)
            made_by_moved.update(eqn.outvars)
    return moved


def _sunk(graph, bits) -> set[JaxprEqn]:
    """Readout contractions, what follows them, and residual sums."""
    recurrent = set(needed(graph.eqns, graph.carry_out))
    consumers = graph.consumers()
    can: set[JaxprEqn] = set()
    for eqn in reversed(graph.eqns):
        if eqn in recurrent or not bits_of(eqn, bits) & CARRY:
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


def _pull_back(graph, bits, hoisted, sunk) -> set[JaxprEqn]:
    """Return to the loop what would make more bytes cross than it saves."""
    hoisted = set(hoisted)
    producers = graph.producers()
    consumers = graph.consumers()

    def crosses(v) -> bool:
        users = consumers.get(v, ())
        return any(u is None or u not in hoisted for u in users)

    for eqn in reversed(graph.eqns):
        if eqn not in hoisted or ops.is_heavy(eqn):
            continue
        users = [u for v in eqn.outvars for u in consumers.get(v, ())]
        if any(u is None or u in hoisted or u in sunk for u in users):
            continue
        saved = sum(ops.bytes_of(v) for v in eqn.outvars)
        ins = {v for v in variables(eqn.invars) if bits[v] == TIME}
        from_hoisted = [v for v in ins if producers.get(v) in hoisted]
        added = sum(ops.bytes_of(v) for v in from_hoisted if not crosses(v))
        added += sum(ops.bytes_of(v) for v in ins if v in graph.xs)
        if added < saved:
            hoisted.discard(eqn)
    return hoisted


def _cut(graph, bits, hoisted, sunk) -> Stages:
    """Turn sets of moved equations into the variables that cross each edge."""
    made_before = {v for e in hoisted for v in e.outvars}
    made_after = {v for e in sunk for v in e.outvars}
    readout = [a for e in sunk for a in variables(e.invars)] + variables(graph.ys)
    stacked = _unique(
        v for v in readout if bits[v] & CARRY and v not in made_after
    )
    known = {*made_before, *graph.carry, *graph.xs}
    in_loop = needed(graph.eqns, (*graph.carry_out, *stacked), known)
    in_loop = [e for e in in_loop if bits_of(e, bits) or _stays(e)]
    made_in_loop = {v for e in in_loop for v in e.outvars}
    reads = _unique(
        v
        for a in (*in_loop, None)
        for v in variables(a.invars if a else (*graph.carry_out, *stacked))
        if v not in made_in_loop and v not in graph.carry
    )
    constants = tuple(v for v in reads if bits[v] == 0)
    loop = Graph(
        weights=constants,
        carry=graph.carry,
        xs=tuple(v for v in reads if bits[v] == TIME),
        eqns=tuple(in_loop),
        carry_out=graph.carry_out,
        ys=stacked,
    )
    read_after = _read_after(graph, {*made_before, *stacked, *graph.xs})
    crossing = tuple(
        v for v in made_before if v in set(loop.xs) or v in read_after
    )
    order = {v: i for i, e in enumerate(graph.eqns) for v in e.outvars}
    hoisted_vars = tuple(sorted(crossing, key=lambda v: order[v]))
    return Stages(graph, constants, hoisted_vars, loop)


def _read_after(graph, known) -> set[Var]:
    eqns = needed(graph.eqns, graph.ys, known)
    return {*variables(graph.ys), *(v for e in eqns for v in variables(e.invars))}


def _stays(eqn) -> bool:
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


_kind = bits_of


def _unique(items) -> tuple:
    return tuple(dict.fromkeys(items))
