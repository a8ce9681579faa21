"""Decide where each equation runs: before the loop, in it, or after it.

Time-parallel contractions, and what only follows them, move before the loop. Readout
contractions, and what follows them, move after it, where that pays. Both then run
once, batched over time. Cheap pointwise work moves only if then fewer bytes cross the
edge of the loop: each array that crosses is written and read once per sequence.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax.extend.core import Var

from scanrnn.planner.costs import grows
from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.contractions import multiplications
from scanrnn.planner.ir.graph import (
    CARRY,
    TIME,
    WEIGHTS,
    Graph,
    free,
    has_own_rule,
    inside,
    needed,
    variables,
)
from scanrnn.planner.motion.crossing import cheapest_crossing
from scanrnn.planner.motion.moved import (
    find_hoisted,
    find_large,
    find_sunk,
    starts_move,
)

# The most numbers of an index: one for each axis of an array, at its start and its end.
_INDEX = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """The cut of a step into stages, each a graph with named inputs and outputs.

    Attributes:
      graph: the whole step.
      constants: computes, from weights alone, what the other stages read.
      before: computes from time inputs, before the loop and for all steps.
      norms: the rest of the work before the loop, if it contains reductions. It reads
        the outputs of `before`.
      loop: the part of the step that stays in the loop; its `ys` are stacked.
      after: computes the outputs of the step after the loop, for all steps.
    """

    graph: Graph
    constants: Graph
    before: Graph
    norms: Graph
    loop: Graph
    after: Graph

    @property
    def hoisted(self) -> tuple[Var, ...]:
        """The variables computed before the loop and read in it or after it."""
        read = {*self.loop.xs, *self.after.xs}
        return tuple(v for v in (*self.before.ys, *self.norms.ys) if v in read)


def classify(
    graph: Graph, hoist: bool, sink: bool, room: int = 0, draws: bool = False
) -> Stages:
    """Cut a step into stages.

    Args:
      graph: the step.
      hoist: whether something may run before the loop.
      sink: whether something may run after it.
      room: the bytes that a product before the loop may add to what a step touches.
      draws: whether random numbers are drawn before the loop.
    """
    bits = graph.depends
    large = find_large(graph, bits, room, draws)
    hoisted = find_hoisted(graph, bits, large, draws) if hoist else set()
    sunk = find_sunk(graph, bits, large) if sink else set()
    # Turn the sets of moved equations into the variables that cross each edge.
    made_before = {v for e in hoisted for v in e.outvars}
    made_after = {v for e in sunk for v in e.outvars}
    # In the order of the step, because the order of a set differs between processes.
    readout = [v for e in graph.eqns if e in sunk for v in variables(e.invars)]
    readout += variables(graph.ys)
    by_step = _made_by_step(graph, bits)
    stacked = [v for v in readout if bits[v] & CARRY or v in large or v in by_step]
    stacked = [v for v in stacked if v not in made_after]
    stacked = tuple(dict.fromkeys(stacked))
    outs = (*graph.carry_out, *stacked)
    stay = needed(graph.eqns, outs, {*made_before, *graph.carry, *graph.xs})
    crossing = cheapest_crossing(
        [e for e in graph.eqns if e in hoisted],
        {e for e in hoisted if starts_move(e, bits, draws)},
        {*graph.xs},
        [v for v in free(stay, outs) if bits[v] == TIME],
    )
    readers = {v for e in sunk for v in variables(e.invars)} | {*variables(graph.ys)}
    producers = graph.producers
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


def _made_by_step(graph, bits) -> set[Var]:
    """Values of time inputs alone that must still be computed step by step.

    Examples are callbacks, and random numbers whose keys would draw other numbers if
    they were batched over time.
    """
    found: set[Var] = set()
    for eqn in (e for e in graph.eqns if bits[e] == TIME):
        if not found.isdisjoint(variables(eqn.invars)) or not ops.is_movable(eqn):
            found.update(eqn.outvars)
    return found


def _stage(graph, bits, given, wanted, carries: bool = False) -> Graph:
    """The part of a step that computes `wanted` from the values `given` of each step.

    With `carries` it has the carry of the step. What depends on weights alone is not
    computed here, with two exceptions: a broadcast that is larger than what it reads,
    and a few numbers that XLA computes at compile time. Unlike weights, these numbers
    never have gradients.
    """
    carry, carry_out = (graph.carry, graph.carry_out) if carries else ((), ())
    outs = (*carry_out, *wanted)
    eqns = needed(graph.eqns, outs, (*given, *carry))
    known = _of_numbers(eqns)
    eqns = [
        e for e in eqns if any(bits[v] for v in e.outvars) or grows(e) or e in known
    ]
    read = [v for v in free(eqns, outs) if v not in carry]
    weights = tuple(v for v in read if bits[v] == WEIGHTS)
    xs = tuple(v for v in read if bits[v] != WEIGHTS)
    return Graph(weights, carry, xs, tuple(eqns), carry_out, tuple(wanted))


def _of_numbers(eqns) -> set:
    """The equations that compute a number, or an index, from literals alone.

    Where XLA knows the index of an update such as `u.at[1:-1, 1:-1].set(x)`, it is a
    slice. Training a heat equation took three times as long where it did not know.
    """
    found: set = set()
    made: set[Var] = set()
    for eqn in eqns:
        few = all(map(_is_number, eqn.outvars))
        if few and made.issuperset(variables(eqn.invars)) and not eqn.effects:
            found.add(eqn)
            made.update(eqn.outvars)
    return found


def _is_number(v) -> bool:
    """Whether a value is a single number, or whole numbers such as an index."""
    aval = ops.aval(v)
    size = ops.size_of(aval)
    return size == 1 or (size <= _INDEX and jnp.issubdtype(aval.dtype, jnp.integer))


def _before(graph, bits, wanted) -> tuple[Graph, Graph]:
    """What runs before the loop, as two graphs: the contractions, then the norms.

    If there are no norms, the first graph has all of it.
    """
    heavy = [v for e in graph.eqns if ops.is_heavy(e) for v in e.outvars]
    given = (*graph.xs, *(v for v in heavy if bits[v] & TIME))
    late = tuple(v for v in wanted if v not in given)
    eqns = needed(graph.eqns, late, given)
    eqns = [e for e in eqns if any(bits[v] for v in e.outvars)]
    if not any(map(ops.is_reduction, eqns)) or not all(map(ops.is_inexact, late)):
        late = ()
    norms = _stage(graph, bits, given, late)
    early = [v for v in wanted if v not in late]
    early += [v for v in norms.xs if v not in early and v not in graph.xs]
    return _stage(graph, bits, graph.xs, early), norms


def can_defer(loop: Graph) -> bool:
    """Whether the planner may give a loop its own derivative rule.

    It may not if a part of the loop has a `jax.custom_vjp`. The author's rule need not
    be the derivative, so only JAX may apply it, and once for each order. It also may
    not if something cannot be batched over time: the rule of a `jax.custom_jvp`, or an
    equation of time inputs alone, because its tangents are computed for all steps at
    once. A `lax.cond` by a time input is such an equation. A loop of products over time
    inputs could be batched, but it would run twice, and keep for all steps what JAX
    keeps of it: for a loop over microbatches, too much. Nor may it if a program in an
    equation draws random numbers that differ for all steps at once: results of such an
    equation may be computed again.
    """
    bits = loop.depends

    def can(eqn) -> bool:
        if has_own_rule(eqn) or ops.draws_apart(inside(eqn)):
            return False
        if bits[eqn] & CARRY:
            return ops.has_batched_rule(eqn)
        if bits[eqn] & TIME and (_may_choose(eqn, bits) or ops.has_heavy_loop(eqn)):
            return False
        # A checkpoint is there to save memory; all its steps at once would use it up.
        return ops.can_be_batched(eqn) and not compat.is_checkpoint(eqn)

    return all(map(can, loop.eqns))


def runs_programs_again(loop: Graph) -> bool:
    """Whether the planner's derivative rule would mostly run loops or branches twice.

    Those that read the carry count. JAX keeps what the derivative of a loop or of a
    branch reads. The planner's rule keeps their results alone. That pays if most
    products of the step are outside them.
    """
    programs, bits = {"scan", "while", "cond", ops.RULED}, loop.depends
    inner = [e for e in loop.eqns if e.primitive.name in programs and bits[e] & CARRY]
    inner = [e for e in inner if any(map(ops.is_inexact, e.outvars))]
    outer = filter(ops.is_heavy, loop.eqns)
    inside, outside = (sum(map(multiplications, of)) for of in (inner, outer))
    return bool(inner) and inside >= outside


def _may_choose(eqn, bits) -> bool:
    """Whether a `lax.cond` by a time input may be in an equation.

    For all steps at once JAX makes it a select with `stop_gradient`, which has no
    transpose.
    """
    conds = [e for e in inside(eqn) if e.primitive.name == "cond"]
    if not all(map(compat.is_by_platform, conds)):
        return True
    which = eqn.invars[0]
    timed = not ops.is_literal(which) and bits[which] & TIME
    return eqn.primitive.name == "cond" and bool(timed)


def _before_bias(v, producers, bits) -> Var:
    """Let `x @ W` cross into the loop instead of `x @ W + b`.

    In the loop the sum is part of a fusion. Before the loop it would be a pass over the
    whole sequence and a second array.
    """
    while (eqn := producers[v]).primitive.name in ops.ADDITIVE:
        timed = [a for a in variables(eqn.invars) if bits[a] == TIME]
        if len(timed) != 1 or timed[0] not in producers:
            break
        if not ops.alike(timed[0], v):
            break
        (v,) = timed
    return v
