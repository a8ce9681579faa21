"""Where each equation runs: before the loop, in it, or after it.

Time-parallel contractions (and what only follows them) move before the loop;
readout contractions (and what follows them) move after it; both then run once,
batched over time. Cheap pointwise work moves only when fewer bytes cross the
loop's edge: every array that crosses is written and read once per sequence.
"""

from __future__ import annotations

import dataclasses

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner import compat, ops
from scanrnn.planner.crossing import cheapest_crossing
from scanrnn.planner.graph import (
    CARRY,
    TIME,
    WEIGHTS,
    Graph,
    free,
    has_own_rule,
    needed,
    variables,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """The cut of a step into stages, each a graph with named inputs and outputs.

    Attributes:
      graph: the whole step.
      constants: what the other stages read of weights alone.
      before: from time inputs to what is computed before the loop, for all steps.
      norms: what is left to do before the loop where there are reductions in it; it
        reads what `before` makes.
      loop: what remains; its `ys` are stacked.
      after: from all of these to the outputs of the step, for all steps.
    """

    graph: Graph
    constants: Graph
    before: Graph
    norms: Graph
    loop: Graph
    after: Graph

    @property
    def hoisted(self) -> tuple[Var, ...]:
        """What is computed before the loop and read in it, or after it."""
        read = {*self.loop.xs, *self.after.xs}
        return tuple(v for v in (*self.before.ys, *self.norms.ys) if v in read)


def classify(graph: Graph, hoist: bool = True, sink: bool = True) -> Stages:
    """Cut a step into stages."""
    bits = graph.depends()
    large = _large(graph, bits)
    hoisted = _hoisted(graph, bits, large) if hoist else set()
    sunk = _sunk(graph, bits, large) if sink else set()
    return _cut(graph, bits, large, hoisted, sunk)


def _large(graph, bits) -> set[Var]:
    """Time-parallel values that grow out of all proportion, and what is made of them.

    Of these the loop has one step at a time: an outer product that is written into a
    matrix memory, say. In proportion is what is made of something as large, and what is
    no larger than what a step returns and what shared matrices make of its inputs.
    """
    timed = [e for e in graph.eqns if bits[e] == TIME]
    most = _bytes(variables(graph.ys))
    most += _bytes(v for e in timed if is_shared(e, bits) for v in e.outvars)
    found: set[Var] = set()
    for eqn in timed:
        if _grows(eqn, bits, most) or not found.isdisjoint(variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def _grows(eqn, bits, most: int) -> bool:
    """Whether a step makes more than `most` bytes here, and more than it reads here."""
    read = (v for v in variables(eqn.invars) if bits[v])
    return _bytes(eqn.outvars) > max(most, _bytes(read))


def _hoisted(graph, bits, large) -> set[JaxprEqn]:
    """Time-parallel contractions and the movable equations after them."""
    movable, moved = set(graph.xs), set()
    made_by_moved: set[Var] = set()
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        fits = all(v in movable or bits[v] == 0 for v in ins)
        fits = fits and large.isdisjoint(eqn.outvars)
        if bits[eqn] != TIME or not fits or not ops.is_movable(eqn):
            continue
        movable.update(eqn.outvars)
        if is_shared(eqn, bits) or any(v in made_by_moved for v in ins):
            moved.add(eqn)
            made_by_moved.update(eqn.outvars)
    return moved


def _sunk(graph, bits, large) -> set[JaxprEqn]:
    """Readout contractions and residual sums that pay, with all that follows them.

    What they read of the loop is kept for all steps. A product pays where that is no
    more than the matrix that the loop is spared, and what a step reads and returns
    anyway. A sum pays where it is no more than what a step returns. So the state of a
    matrix memory, larger than what is read of it, is never stacked for a readout. A
    gradient has the cotangent of what is kept, which is as large: one rule for both.
    """
    can, consumers = _can_sink(graph, bits), graph.consumers()
    carried = {*graph.carry, *variables(graph.carry_out)}
    given = _bytes(variables(graph.ys))
    sunk: set[JaxprEqn] = set()
    made: set[Var] = set()
    kept = {*variables(graph.ys)}
    for eqn in (e for e in graph.eqns if e in can and e not in sunk):
        ins = variables(eqn.invars)
        if is_shared(eqn, bits):
            grown = given + _bytes(v for v in ins if not bits[v])
            most = grown + _bytes(graph.xs)
        elif any(bits[v] == TIME for v in ins):
            # What it reads of the loop is stacked in the place of what it gives.
            read = [v for v in ins if bits[v] & CARRY and v not in made]
            grown = given
            most = given if carried.issuperset(read) and _bytes(read) <= given else -1
        else:
            continue
        moved = _with_followers(eqn, consumers)
        read = {v for e in moved for v in variables(e.invars)}
        read = {v for v in read if bits[v] & CARRY or v in large}
        read -= made | kept | {v for e in moved for v in e.outvars}
        if _bytes(read) <= most and not any(_grows(e, bits, grown) for e in moved):
            sunk |= moved
            made |= {v for e in moved for v in e.outvars}
            kept |= read
    return sunk


def _can_sink(graph, bits) -> set[JaxprEqn]:
    """Equations that may run after the loop, with all that read what they make."""
    recurrent = set(needed(graph.eqns, graph.carry_out))
    consumers, owned = graph.consumers(), _owned_weights(graph, bits)
    can: set[JaxprEqn] = set()
    for eqn in reversed(graph.eqns):
        if eqn in recurrent or not bits[eqn] & CARRY:
            continue
        if not owned.isdisjoint(variables((*eqn.invars, *eqn.outvars))):
            continue
        users = [u for v in eqn.outvars for u in consumers.get(v, ())]
        if ops.is_movable(eqn) and all(u is None or u in can for u in users):
            can.add(eqn)
    return can


def _with_followers(eqn, consumers) -> set[JaxprEqn]:
    """An equation, and all that read what it makes, or what these make."""
    found, new = set(), [eqn]
    while new:
        eqn = new.pop()
        if eqn not in found:
            found.add(eqn)
            users = (u for v in eqn.outvars for u in consumers.get(v, ()))
            new += [u for u in users if u is not None]
    return found


def _bytes(values) -> int:
    return sum(map(ops.bytes_of, values))


def is_shared(eqn, bits) -> bool:
    """Whether an equation is a contraction with a matrix that all steps share.

    Over all steps at once it is one product that reads the matrix once. One whose
    operands are the step's own stays as many products as there are steps.
    """
    shared = any(not bits[v] for v in variables(eqn.invars))
    return ops.is_heavy(eqn) and shared


def _owned_weights(graph, bits) -> set[Var]:
    """What a `jax.custom_vjp` makes of weights: not to be stacked for all steps."""
    owned: set[Var] = set()
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        if all(bits[v] == WEIGHTS or v in owned for v in ins):
            if has_own_rule(eqn) or not owned.isdisjoint(ins):
                owned.update(eqn.outvars)
    return owned


def _cut(graph, bits, large, hoisted, sunk) -> Stages:
    """Turn sets of moved equations into the variables that cross each edge."""
    made_before = {v for e in hoisted for v in e.outvars}
    made_after = {v for e in sunk for v in e.outvars}
    # In the order of the step: a set of equations has another in every process.
    readout = [v for e in graph.eqns if e in sunk for v in variables(e.invars)]
    readout += variables(graph.ys)
    stacked = [v for v in readout if bits[v] & CARRY or v in large]
    stacked = [v for v in stacked if v not in made_after]
    stacked = tuple(dict.fromkeys(stacked))
    outs = (*graph.carry_out, *stacked)
    stay = needed(graph.eqns, outs, {*made_before, *graph.carry, *graph.xs})
    crossing = cheapest_crossing(
        [e for e in graph.eqns if e in hoisted],
        {e for e in hoisted if is_shared(e, bits)},
        {*graph.xs},
        [v for v in free(stay, outs) if bits[v] == TIME],
    )
    readers = {v for e in sunk for v in variables(e.invars)} | {*variables(graph.ys)}
    producers = graph.producers()
    crossing = {
        v if v in readers else _before_bias(v, producers, bits) for v in crossing
    }
    loop = _stage(graph, bits, (*crossing, *graph.xs), stacked, carries=True)
    made = [v for e in graph.eqns for v in e.outvars if v in made_before]
    after = _stage(graph, bits, (*graph.xs, *made, *stacked), graph.ys)
    used = {*loop.xs, *after.xs}
    before, norms = _before(graph, bits, [v for v in made if v in used])
    read = dict.fromkeys(v for s in (before, norms, loop, after) for v in s.weights)
    return Stages(
        graph=graph,
        constants=graph.part(tuple(read)),
        before=before,
        norms=norms,
        loop=loop,
        after=after,
    )


def _stage(graph, bits, known, wanted, carries: bool = False) -> Graph:
    """The part of a step that makes some values, given others of each step.

    It carries what the step does, if it `carries`. What is made of weights alone is
    not made here, but where that is larger than the weights.
    """
    carry, carry_out = (graph.carry, graph.carry_out) if carries else ((), ())
    outs = (*carry_out, *wanted)
    eqns = needed(graph.eqns, outs, (*known, *carry))
    eqns = [e for e in eqns if any(bits[v] for v in e.outvars) or ops.grows(e)]
    read = [v for v in free(eqns, outs) if v not in carry]
    weights = tuple(v for v in read if bits[v] == WEIGHTS)
    xs = tuple(v for v in read if bits[v] != WEIGHTS)
    return Graph(weights, carry, xs, tuple(eqns), carry_out, tuple(wanted))


def _before(graph, bits, wanted) -> tuple[Graph, Graph]:
    """What runs before the loop: all of it, or contractions and then norms."""
    heavy = [v for e in graph.eqns if ops.is_heavy(e) for v in e.outvars]
    known = (*graph.xs, *(v for v in heavy if bits[v] & TIME))
    late = tuple(v for v in wanted if v not in known)
    eqns = needed(graph.eqns, late, known)
    eqns = [e for e in eqns if any(bits[v] for v in e.outvars)]
    if not any(map(ops.is_reduction, eqns)) or not all(map(ops.is_inexact, late)):
        late = ()
    norms = _stage(graph, bits, known, late)
    early = [v for v in wanted if v not in late]
    early += [v for v in norms.xs if v not in early and v not in graph.xs]
    return _stage(graph, bits, graph.xs, early), norms


def can_defer(loop: Graph) -> bool:
    """Whether a loop may have a derivative rule of ours.

    Not where the author gave a part of it one by `jax.custom_vjp`: that need not be
    the derivative, so only JAX may differentiate it, and once for each order. Nor where
    something cannot be batched over time: the rule of a `jax.custom_jvp`, or what is
    made of time inputs alone, whose tangents are computed for all steps at once.
    """
    bits = loop.depends()

    def can(eqn) -> bool:
        if has_own_rule(eqn) or not ops.has_batched_rule(eqn):
            return False
        timed = not bits[eqn] & CARRY
        # All steps of a checkpoint at once take the memory that it is there to save.
        return not timed or (ops.can_be_batched(eqn) and not compat.is_checkpoint(eqn))

    return all(map(can, loop.eqns))


def _before_bias(v, producers, bits) -> Var:
    """`x @ W` in place of `x @ W + b`: in the loop the sum is part of a fusion.

    Before it, it would be a pass over the whole sequence and a second array.
    """
    while (eqn := producers[v]).primitive.name in ops.ADDITIVE:
        timed = [a for a in variables(eqn.invars) if bits[a] == TIME]
        if len(timed) != 1 or timed[0] not in producers:
            break
        if not ops.alike(timed[0], v):
            break
        (v,) = timed
    return v
