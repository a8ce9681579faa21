"""Decide what the forward loop stacks for the reverse loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.planner.derivative.gradient import Derivative, pieced
from scanrnn.planner.derivative.narrowed import are_read_in_part, in_place_of_carries
from scanrnn.planner.derivative.reads import may_be_kept, read, read_of_all
from scanrnn.planner.derivative.regions import Regions
from scanrnn.planner.derivative.steps import Steps
from scanrnn.planner.derivative.tangent import differentiated
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.gemm import transposes
from scanrnn.planner.ir.graph import (
    CARRY,
    Graph,
    needed,
    struct,
    variables,
    variables_for,
)
from scanrnn.planner.rules import Rules

POLICIES = ("minimal", "recompute", "chunked", "everything")


def derive(graph: Graph, regions: Regions, policy: str, rules: Rules) -> Steps:
    """Decide what is saved, and what reads it; the derivative with its first steps.

    The policy "minimal" saves the results of contractions, and, where rules ask for it,
    what takes long to compute again. "recompute" computes both again from carries.
    "everything" saves all that a tangent reads. "chunked" is like "minimal" here: the
    executor cuts the sequence.
    """
    draft = _draft(graph, regions, rules)
    found = _candidates(draft, regions, policy, rules)
    inside, outside, steps = read(draft, found)
    for more in (
        _narrowed(draft, found, inside | outside, policy, rules),
        _all_of_cheap(draft, regions, policy, rules),
    ):
        if more:
            wider = list(dict.fromkeys([*found, *more]))
            other = read(draft, wider)
            if _bytes(graph, wider, *other[:2]) < _bytes(graph, found, inside, outside):
                found, (inside, outside, steps) = wider, other
    saved = [v for v in found if v in inside | outside]
    # Recompute with the equations that the differentiated loop has.
    taken = dataclasses.replace(graph, eqns=draft.differentiated)
    recomputed = _recomputed(taken, saved if policy == "recompute" else (), rules)
    used = {*inside, *outside, *recomputed.xs}
    saved = tuple(v for v in found if v in used)
    derivative = dataclasses.replace(
        draft,
        read_inside=inside,
        read_outside=outside,
        saved=saved,
        carry_saved=tuple(i for i, v in enumerate(graph.carry) if v in used),
        recomputed=recomputed,
    )
    return Steps(derivative, steps)


def _draft(graph: Graph, regions: Regions, rules: Rules) -> Derivative:
    """The derivative that saves nothing yet."""
    inner = _inner(graph, graph.depends, regions.eqns)
    region = frozenset(regions.eqns)
    made = {v for eqn in region for v in eqn.outvars}
    return Derivative(
        graph=graph,
        region=region,
        cuts=tuple(regions.cuts),
        saved=(),
        carry_saved=(),
        inner_weights=frozenset(inner & set(graph.weights)),
        inner_xs=frozenset(inner & set(graph.xs)),
        tangents=variables_for({v: struct(v) for v in (*graph.inputs, *regions.cuts)}),
        cotangents=variables_for({v: struct(v) for v in variables(graph.ys)}),
        transposed=transposes(_matrices(graph) if rules.transposes_weights else ()),
        differentiated=tuple(map(differentiated, graph.eqns)),
        pieced=pieced(graph, region),
        internal=frozenset(made - {*regions.cuts}),
    )


def _narrowed(draft, found, now, policy, rules) -> list[Var]:
    """What is kept in place of carries of which a step reads a part."""
    graph = draft.graph
    carries = [v for v in graph.carry if v in now]
    if policy not in ("minimal", "chunked") or not are_read_in_part(graph, carries):
        return []

    def recomputable(eqn) -> bool:
        slow = rules.keeps_costly and ops.is_costly(eqn)
        return not (slow or ops.is_heavy(eqn) or ops.draws_by_step(eqn))

    made = may_be_kept(draft)
    inside, outside, _ = read(draft, dict.fromkeys([*found, *made]))
    return in_place_of_carries(graph, made, inside | outside, recomputable)


def _all_of_cheap(draft, regions, policy, rules) -> list[Var]:
    """All that a tangent reads, for steps without products, on a CPU.

    It is kept if that takes less memory than the carry, with which it would be computed
    again. Training a heat equation then takes 0.78 of the time.
    """
    cheap = rules.keeps_costly and not any(map(ops.is_heavy, draft.graph.eqns))
    if policy != "minimal" or not cheap:
        return []
    return _candidates(draft, regions, "everything", rules)


def _bytes(graph, found, inside, outside) -> int:
    """The bytes per step that are kept for these reads: of carries and of values."""
    used = inside | outside
    return ops.bytes_in(v for v in (*graph.carry, *found) if v in used)


def _matrices(graph) -> list[Var]:
    """The matrices that the loop multiplies by."""
    pairs = ((eqn, *pair) for eqn in graph.eqns for pair in enumerate(eqn.invars))
    return [v for e, i, v in pairs if v in graph.weights and ops.is_matrix_of(e, i)]


def _recomputed(graph, saved, rules) -> Graph:
    """The graph that recomputes, for all steps at once, what is not stacked."""
    most = _small(saved, rules)
    drawn = {*_drawn(graph)}
    stacked = {*variables(graph.outs), *drawn}
    stacked |= {v for v in saved if ops.bytes_of(v) <= most}
    made = tuple(v for v in saved if v not in stacked)
    return graph.part(made, {*saved, *drawn} - set(made))


def _inner(graph, bits, region) -> set[Var]:
    """Variables off the recurrence whose tangents must flow inside the loop."""

    def off(v) -> bool:
        return not bits[v] & CARRY

    wanted = {v for v in variables(graph.outs) if off(v)}
    for eqn in graph.eqns:
        if eqn not in region and not off(eqn):
            wanted |= {v for v in variables(eqn.invars) if off(v)}
    for eqn in needed(graph.eqns, wanted):
        wanted |= set(variables(eqn.invars))
    return wanted


def _candidates(draft, regions, policy, rules) -> list[Var]:
    """The variables that a residual policy may save."""
    graph, drawn = draft.graph, _drawn(draft.graph)
    if policy == "everything":
        bits = graph.depends
        made = [v for e in graph.eqns for v in e.outvars if bits[v] & CARRY]
        drop = draft.internal
        made = [v for v in made if not isinstance(v, DropVar) and v not in drop]
        return list(dict.fromkeys([*made, *drawn]))
    consumers = graph.consumers
    found = [o for v in regions.heavy_cuts for o in _activated(v, consumers)]
    more = _statistics(draft, found, rules) if rules.keeps_statistics else []
    found = [v for v in dict.fromkeys([*found, *more]) if v not in drawn]
    if policy == "recompute":
        # Control flow cannot run for all steps at once; it is run again step by step.
        made = {v: needed(graph.eqns, [v], drawn) for v in found}
        found = [v for v, eqns in made.items() if all(map(ops.is_movable, eqns))]
    elif rules.keeps_costly:
        found += _costly(draft, found, rules)
    return list(dict.fromkeys([*found, *drawn]))


def _costly(draft, saved, rules) -> list[Var]:
    """What takes long to compute again, and the next carries that contractions read.

    XLA would compute such a carry again in each contraction that reads it. If the carry
    before the step is kept too, both are one array.
    """
    graph, bits = draft.graph, draft.graph.depends
    multiplied = {v for e in graph.eqns if ops.is_heavy(e) for v in variables(e.invars)}
    found = [v for v in variables(graph.carry_out) if v in multiplied]
    found = [v for v in found if bits[v] & CARRY and ops.is_inexact(v)]
    kept, without = {*graph.inputs, *saved, *found}, {*graph.carry, *draft.internal}
    most = max(map(ops.bytes_of, (*graph.carry, *saved)), default=0)
    order = {id(e): n for n, e in enumerate(graph.eqns) if _is_slow(e, rules)}
    quick: set[Var] = set()
    for v in read_of_all(draft, saved) if order else ():
        slow = _slow_before(graph, v, kept, quick, order)
        new = _worth_keeping(v, slow, most)
        found += new
        kept |= {*new}
    return [v for v in found if v not in without]


def _slow_before(
    graph: Graph, v: Var, kept: set[Var], quick: set[Var], order: Mapping[int, int]
) -> list[JaxprEqn]:
    """The slow equations that would compute a value again from what is kept.

    If there are none, what is passed on the way is added to `quick`: a later search
    does not pass it again. So each value is looked at a few times, not once for each
    value after it. `order` has the places of the slow equations, by their ids.
    """
    found: set[int] = set()
    passed, todo = {v}, [v]
    while todo:
        eqn = None if (at := todo.pop()) in kept else graph.producer(at)
        if eqn is None:
            continue
        if id(eqn) in order:
            found.add(order[id(eqn)])
        new = {*variables(eqn.invars)} - passed - quick
        passed |= new
        todo += new
    if not found:
        quick |= passed
    return [graph.eqns[n] for n in sorted(found)]


def _worth_keeping(v: Var, slow, most: int) -> list[Var]:
    """What to keep for a value, which needs these slow equations if it is not kept.

    A value of more than `most` bytes is kept only if it takes very long: a factor of a
    matrix. Of others, such as `exp` of all pairs of features, the sums and maxima that
    they read are kept. When `softplus` of all pairs of 64 features was kept, training
    took 21 times the temporaries, and no less time.
    """
    if ops.bytes_of(v) <= most or not all(map(ops.is_cheap_over_time, slow)):
        return [v] if slow else []
    reduced = [o for e in slow if ops.is_reduction(e) for o in e.outvars]
    return [o for o in reduced if ops.bytes_of(o) <= most]


def _is_slow(eqn, rules) -> bool:
    """Whether an equation, or what reads it, takes long if it is computed again."""
    moves = eqn.primitive.name in rules.slow_moves
    return moves or ops.is_costly(eqn) or ops.is_reduction(eqn)


def _drawn(graph) -> list[Var]:
    """Random numbers that would differ if they were drawn for all steps at once."""
    drawn = [v for e in graph.eqns if ops.draws_by_step(e) for v in e.outvars]
    keys = jax.dtypes.prng_key
    return [v for v in drawn if not jnp.issubdtype(ops.aval(v).dtype, keys)]


def _statistics(draft, saved, rules) -> list[Var]:
    """Statistics of norms: small to keep, but a pass over the data to recompute."""
    most = _small(saved, rules)
    graph, bits = draft.graph, draft.graph.depends
    made = [v for e in graph.eqns for v in e.outvars if bits[v] & CARRY]
    return [v for v in made if ops.is_inexact(v) and ops.bytes_of(v) <= most]


def _small(saved, rules) -> float:
    """The most bytes of a value that is small beside the saved ones."""
    return rules.small * max(map(ops.bytes_of, saved), default=0)


def _activated(v, consumers) -> list[Var]:
    """Save `tanh(z)` instead of `z` if only the activation reads `z`.

    It has as many bytes, and the reverse loop need not evaluate the activation again.
    """
    users = consumers.get(v, [])
    if len(users) != 1 or users[0] is None:
        return [v]
    (eqn,) = users
    if eqn.primitive.name in ops.FROM_OUTPUT:
        return [eqn.outvars[0]]
    if eqn.primitive.name == "split":
        parts = [o for o in eqn.outvars if not isinstance(o, DropVar)]
        after = [_activated(o, consumers) for o in parts]
        if any(a != [o] for a, o in zip(after, parts, strict=True)):
            return [o for a in after for o in a]
    return [v]
