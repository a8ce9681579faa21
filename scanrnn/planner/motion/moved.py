"""Choose which equations leave the loop: those that are worth the memory they take.

Time-parallel products go before the loop, readouts after it. For each of them some
array is kept for all steps that `lax.scan` has for one step at a time. This module
weighs these arrays, in bytes per step.
"""

from __future__ import annotations

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.costs import excess
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import (
    CARRY,
    TIME,
    WEIGHTS,
    has_own_rule,
    needed,
    variables,
)
from scanrnn.planner.passes.wide_sums import widens


def find_large(graph, bits, room: int = 0, draws: bool = False) -> set[Var]:
    """Time-parallel values that are too large to compute before the loop.

    The loop computes them one step at a time. An example is an outer product that is
    written into a matrix memory. A value is too large if it has more bytes than its
    equation reads, and more than the outputs of the step and the products of its inputs
    with shared matrices have together. So is every value computed from such a value. A
    cast from half precision to float32 is not too large: it is fused with what reads
    it, such as a norm, and where the loop would read its result, it stays in the loop.

    A product with a shared matrix is too large if it has more bytes than its matrix,
    the carry, the inputs and the outputs of the step together, and `room` bytes
    besides. An example is a block of a kernel matrix, between all points and some. A
    convolution is not too large: on a CPU the gradients of one for all steps are up to
    ten times faster than those of one for each step.

    With `draws`, random numbers and keys are not too large: the loop cannot draw.
    """
    timed = [e for e in graph.eqns if bits[e] == TIME]
    ys = variables(graph.ys)
    touched = (*ys, *graph.carry, *graph.xs)
    shared = [e for e in timed if is_shared(e, bits)]
    found: set[Var] = set()
    for eqn in (e for e in shared if e.primitive.name != ops.CONVOLUTION):
        if _adds(eqn, bits, touched) > room:
            found.update(eqn.outvars)
    made = [v for e in shared for v in e.outvars if v not in found]
    for eqn in timed:
        if draws and eqn.primitive.name.startswith("random_"):
            continue
        grows = _outgrows(eqn, bits, [*ys, *made]) and not widens(eqn)
        if grows or not found.isdisjoint(variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def _adds(eqn, bits, touched) -> int:
    """The bytes of a product beyond those of its matrix and of what a step touches.

    They are counted in the dtype of its operands: products of half precision are often
    added up in float32.
    """
    ins = variables(eqn.invars)
    widest = max(ops.aval(v).dtype.itemsize for v in ins)
    made = widest * sum(ops.size_of(ops.aval(v)) for v in eqn.outvars)
    return made - ops.bytes_in((*touched, *(v for v in ins if not bits[v])))


def _outgrows(eqn, bits, anyway) -> bool:
    """Whether an equation makes more bytes than there are anyway, and than it reads."""
    read = (v for v in variables(eqn.invars) if bits[v])
    return excess(eqn.outvars, anyway) > 0 and excess(eqn.outvars, read) > 0


def find_hoisted(graph, bits, large, draws: bool = False) -> set[JaxprEqn]:
    """Time-parallel contractions, and the movable equations that read them.

    With `draws`, also what draws random numbers, and what reads these.
    """
    movable, moved = set(graph.xs), set()
    made_by_moved: set[Var] = set()
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        fits = all(v in movable or bits[v] == 0 for v in ins)
        fits = fits and large.isdisjoint(eqn.outvars)
        if bits[eqn] != TIME or not fits or not ops.is_movable(eqn):
            continue
        movable.update(eqn.outvars)
        starts = starts_move(eqn, bits, draws)
        if starts or any(v in made_by_moved for v in ins):
            moved.add(eqn)
            made_by_moved.update(eqn.outvars)
    return moved


def starts_move(eqn, bits, draws: bool) -> bool:
    """Whether an equation of time inputs is a reason by itself to leave the loop."""
    return is_shared(eqn, bits) or (draws and eqn.primitive.name == ops.RANDOM_BITS)


def find_sunk(graph, bits, large) -> set[JaxprEqn]:
    """Readout contractions and residual sums that pay, with all that follows them.

    What they read from the loop must be kept for all steps. A product pays if this has
    no more bytes per step than its matrix, the inputs and the outputs of the step
    together. A sum pays if it has no more than the outputs of the step. So the state of
    a matrix memory, which is larger than what is read from it, is never stacked for a
    readout. A cotangent is as large as what is kept, so the rule holds for gradients
    too.
    """
    can, consumers = _can_sink(graph, bits), graph.consumers
    carried = {*graph.carry, *variables(graph.carry_out)}
    ys = variables(graph.ys)
    sunk: set[JaxprEqn] = set()
    made: set[Var] = set()
    kept = {*ys}
    for eqn in (e for e in graph.eqns if e in can and e not in sunk):
        ins = variables(eqn.invars)
        if is_shared(eqn, bits):
            grown = [*ys, *(v for v in ins if not bits[v])]
            anyway = [*grown, *graph.xs]
        elif any(bits[v] == TIME for v in ins):
            # What it reads from the loop is stacked in place of its result.
            read = [v for v in ins if bits[v] & CARRY and v not in made]
            grown = anyway = ys
            if not carried.issuperset(read) or excess(read, ys) > 0:
                continue
        else:
            continue
        moved = _with_followers(eqn, consumers)
        read = {v for e in moved for v in variables(e.invars)}
        read = {v for v in read if bits[v] & CARRY or v in large}
        read -= made | kept | {v for e in moved for v in e.outvars}
        if excess(read, anyway) > 0:
            continue
        if not any(_outgrows(e, bits, grown) for e in moved):
            sunk |= moved
            made |= {v for e in moved for v in e.outvars}
            kept |= read
    return sunk


def _can_sink(graph, bits) -> set[JaxprEqn]:
    """Equations that may run after the loop, with all equations that read them."""
    recurrent = set(needed(graph.eqns, graph.carry_out))
    consumers, owned = graph.consumers, _owned_weights(graph, bits)
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
    """An equation, and all equations that depend on its results."""
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

    For all steps at once it is one product that reads the matrix once. A contraction
    without a shared matrix stays one product for each step.
    """
    shared = any(not bits[v] for v in variables(eqn.invars))
    return ops.is_heavy(eqn) and shared


def _owned_weights(graph, bits) -> set[Var]:
    """Results of a `jax.custom_vjp` from weights alone. They must not be stacked."""
    owned: set[Var] = set()
    for eqn in graph.eqns:
        ins = variables(eqn.invars)
        if all(bits[v] == WEIGHTS or v in owned for v in ins):
            if has_own_rule(eqn) or not owned.isdisjoint(ins):
                owned.update(eqn.outvars)
    return owned
