"""Which equations leave the loop: only those that pay for what must then be kept.

Time-parallel products go before the loop, readouts after it. For each something is kept
for all steps that `lax.scan` has for one step at a time: it is weighed here, in bytes
of a step.
"""

from __future__ import annotations

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner import ops
from scanrnn.planner.graph import CARRY, TIME, WEIGHTS, has_own_rule, needed, variables


def find_large(graph, bits) -> set[Var]:
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


def find_hoisted(graph, bits, large) -> set[JaxprEqn]:
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


def find_sunk(graph, bits, large) -> set[JaxprEqn]:
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


def _bytes(values) -> int:
    return sum(map(ops.bytes_of, values))
