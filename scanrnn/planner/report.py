"""Describe a plan in words: what runs, what limits it, and every decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scanrnn.planner import affine, compat, ops
from scanrnn.planner.counts import placed
from scanrnn.planner.graph import CARRY


class Tuning(NamedTuple):
    """What the tuner measured: median seconds by candidate, and what it chose."""

    objective: str
    chosen: str
    seconds: dict[str, float]
    remembered: str | None


class Report(NamedTuple):
    """Lines of text about a plan, before and after its table of contractions."""

    summary: list[str]
    limits: list[str]
    details: list[str]


def report(plan) -> Report:
    """The lines of a plan: what runs, why not more is moved, and every decision."""
    summary = [headline(plan), *_executors(plan), *_tuning(plan)]
    leaves = [] if plan.stages is None else [*_leaves(plan)]
    if plan.reason is not None:
        return Report(summary, leaves, [])
    summary += [*_outside(plan), *_kept(plan)]
    limits = [*_recurrent(plan), *_stays(plan), *leaves]
    return Report(summary, limits, [*_moves(plan), *_choices(plan), *_residuals(plan)])


def headline(plan) -> str:
    """The first line: how many steps, and what is left in the loop."""
    direction = " in reverse" if plan.reverse else ""
    head = f"{plan.length} steps{direction}"
    if plan.reason is not None:
        return f"Plan: {head}, by lax.scan as it stands: {plan.reason}."
    here = [e for e in plan.stages.loop.eqns if ops.is_heavy(e)]
    was = [e for e in plan.stages.graph.eqns if ops.is_heavy(e)]
    if plan.chunk:
        head += f" in chunks of {plan.chunk}"
        if plan.options.chunk is None and plan.residuals != "chunked":
            size = plan.length * plan.passing or plan.outside_bytes
            head += f" (at once it would take {_bytes(size)})"
    return (
        f"Plan: {head}, {len(here)} GEMM{'s' * (len(here) != 1)} per step in the loop "
        f"(of {len(was)} in the step after splitting and merging)."
    )


def _executors(plan) -> Iterator[str]:
    """The candidates with their estimates, the chosen one first."""
    found = sorted(plan.candidates, key=lambda c: c.name != plan.executor)
    told = [
        f"{c.name} {1e3 * c.seconds:.3g} ms"
        if c.refusal is None
        else f"{c.name} refuses"
        for c in found
    ]
    if told:
        told = ", ".join(told)
        yield f"On {plan.machine.kind}, estimates of a training step: {told}."


def _tuning(plan) -> Iterator[str]:
    if plan.tuning is None:
        return
    objective, chosen, seconds, remembered = plan.tuning
    times = ", ".join(f"{name} {1e3 * s:.4g} ms" for name, s in seconds.items())
    where = f"remembered in {remembered}" if remembered else "not remembered"
    yield f"Tuned ({objective}): {chosen} is used; medians: {times}; {where}."


def _outside(plan) -> Iterator[str]:
    """The contractions that left the loop, and what is left in the reverse loop."""
    where = [place for e, place in placed(plan.stages) if ops.is_heavy(e)]
    before, after = (_number(where.count(place)) for place in ("before", "after"))
    yield f"Outside the loop, {_at_once(plan)}: {before} before it, {after} after it."
    back = [r for r in plan.gemms if r.phase != "forward" and r.where == "loop"]
    steps = max(plan.length, 1) if isinstance(plan.length, int) else 1
    left = _number(sum(r.count for r in back) // steps)
    inner = sum(r.count for r in back if r.phase == "weight gradient") // steps
    place = f"{inner} of these" if inner else f"after it, {_at_once(plan)}"
    yield f"Gradient: {left} per step in the reverse loop; weight gradients {place}."


def _at_once(plan) -> str:
    return f"for {plan.chunk or 'all'} steps at once"


def _recurrent(plan) -> Iterator[str]:
    """The contractions that no pass can move."""
    loop = plan.stages.loop
    bits, heavy = loop.depends(), [e for e in loop.eqns if ops.is_heavy(e)]
    if bound := sum(bool(bits[e] & CARRY) for e in heavy):
        need = f"need{'s' * (bound == 1)} the carry of the step before"
        yield f"Why not more: {_number(bound)} per step {need}."
    elif not heavy:
        yield "Why not more: no GEMM is left in the loop."


def _number(count: int) -> str:
    return f"{count or 'no'} GEMM{'s' * (count != 1)}"


def _moves(plan) -> Iterator[str]:
    stages, rules = plan.stages, plan.derivative
    names = {}
    for eqn, where in placed(stages):
        names.setdefault(where, []).append(eqn.primitive.name)
    crossing = ", ".join(v.aval.str_short() for v in stages.hoisted)
    yield f"Before the loop: {_tally(names.get('before'))}" + (
        f"; into the loop go {crossing} per step." if crossing else "."
    )
    yield f"In the loop:     {_tally(names.get('loop'))}."
    yield f"After the loop:  {_tally(names.get('after'))}."
    if rules.cuts and plan.defer:
        cuts = ", ".join(v.aval.str_short() for v in rules.cuts)
        yield (
            "Weight gradients: after the reverse loop, batched over time, from "
            f"cotangents of {cuts} per step."
        )
    if plan.invariant:
        yield f"Carry leaves {list(plan.invariant)} never change: treated as weights."


def _choices(plan) -> Iterator[str]:
    """The choices of the cost rules, with the numbers that decided them."""
    loop = plan.loop
    if plan.hoisted_bytes:
        size = _bytes(plan.hoisted_bytes)
        part = f"{plan.chunk} steps at a time" if plan.chunk else "all steps at once"
        yield f"Hoisted {part}: {size} in all; {_rule_of_chunks(plan)}."
    if plan.value_chunk == plan.length:
        yield "Without a gradient: all steps at once."
    elif plan.value_chunk:
        yield f"Without a gradient: in chunks of {plan.value_chunk}; none is kept."
    if loop.piece is not None:
        how = f"{loop.piece} steps at a time, which fit the fast memory"
        yield f"Norms before the loop: differentiated {how}."
    for v in dict.fromkeys(place.whole for place in loop.laid[1].values()):
        how = "one slice of the sequence for each gate"
        yield f"Read in pieces in the loop: {v.aval.str_short()}, {how}."
    yield from _bodies(plan)
    if any(map(_is_half, plan.stages.graph.eqns)):
        how = "rounded to bfloat16 as the operands are, and accumulated in float32"
        yield f"Products of bfloat16: cotangents are {how}."


def _bodies(plan) -> Iterator[str]:
    """A line for every loop that runs."""
    for name, body in plan.bodies.items():
        rows = body.rows
        told = [f"{rows.length} steps"]
        if rows.block > 1:
            told.append(f"unrolled by {rows.block}, rows written together")
        if body.unroll != 1:
            factor = f"unrolled by {body.unroll}" if body.unroll else "fully unrolled"
            told.append(f"{factor}, rows written step by step")
        names = [e.primitive.name for e in body.graph.eqns if ops.is_heavy(e)]
        told.append(f"{_tally(names)} of {len(body.graph.eqns)} equations")
        if body.transposed:
            told.append(f"{len(body.transposed)} with the features first")
        if rows.over:
            told.append(f"{len(rows.over)} of {len(body.graph.ys)} arrays reuse memory")
        yield f"Loop {name}: {'; '.join(told)}."


def _leaves(plan) -> Iterator[str]:
    """Of which kind each leaf of the carry is: whether it must run step by step."""
    graphs = {"": plan.stages.loop}
    graphs |= {f" {n}": b.graph for n, b in plan.bodies.items() if n == "in reverse"}
    for where, graph in graphs.items():
        told = {}
        for group in affine.groups(graph):
            why = f" ({group.why})" if group.why else ""
            told |= {k: f"{group.kind}{why}" for k in group.leaves}
        leaves = enumerate(graph.carry)
        told = "; ".join(f"{v.aval.str_short()} {told[k]}" for k, v in leaves)
        if told:
            yield f"Over time{where}, by leaf of the carry: {told}."


def _rule_of_chunks(plan) -> str:
    """The rule that decided how many steps are computed at once."""
    if plan.options.chunk is not None:
        return "chunks as asked for"
    if plan.residuals == "chunked":
        return "chunks that keep the fewest carries"
    if not plan.passing:
        return f"up to {_bytes(plan.rules.outside_bytes)} go at once"
    most = plan.rules.chunk(plan.machine, plan.passing, plan.length)
    size = f"{_bytes(plan.passing)} per step with what is recomputed"
    return f"up to {min(most, plan.length)} steps go at once, {size}"


def _is_half(eqn) -> bool:
    return eqn.primitive.name == "dot_general" and all(
        not ops.is_literal(a) and str(a.aval.dtype) == "bfloat16" for a in eqn.invars
    )


def _tally(names) -> str:
    if not names:
        return "nothing"
    counts = {n: names.count(n) for n in dict.fromkeys(names)}
    return ", ".join(f"{c} {n}" if c > 1 else n for n, c in counts.items())


def _stays(plan) -> Iterator[str]:
    """Contractions and weights that a pass had to leave alone, and why."""
    loop, rules = plan.stages.loop, plan.derivative
    bits = loop.depends()
    bound = "what it reads cannot be batched over time"
    bound = bound if plan.options.hoist else "Options(hoist=False)"
    for eqn in loop.eqns:
        name = eqn.primitive.name
        if compat.is_checkpoint(eqn):
            yield "Left in the loop: jax.checkpoint (its author says what it keeps)."
        elif ops.has_subjaxpr(eqn) and name != "custom_jvp_call":
            yield f"Left in the loop: {name} ({_why(name)})."
        elif ops.is_heavy(eqn) and not bits[eqn] & CARRY:
            yield f"Left in the loop: a time-parallel {name} ({bound})."
    moving = rules.inner_weights & {w for w in loop.weights if ops.is_inexact(w)}
    inner = [w for w in loop.weights if w in moving]
    if inner:
        shapes = [w.aval.str_short() for w in inner]
        yield (
            f"Gradients accumulated in the reverse loop, for {', '.join(shapes)}: "
            "gains, or read by an equation that is left alone."
        )
    if not plan.defer:
        rule = "jax.custom_vjp, or what cannot be batched over time"
        why = "Options(defer=False)" if not plan.options.defer else rule
        yield f"Weight gradients stay in the reverse loop: {why}."


def _why(name) -> str:
    reasons = {
        "cond": "batched over time it would run both branches at every step",
        "while": "batched over time it would run as long as the longest step",
        "scan": "a loop of its own; plan it where it is called",
        "custom_vjp_call": "its derivative rule is the author's",
        "custom_linear_solve": "its derivative rule is its own",
    }
    return reasons.get(name, "the planner does not look inside")


def _kept(plan) -> Iterator[str]:
    ours, theirs = plan.residual_bytes
    if ours is None:
        yield "Residuals: the step has no reverse-mode derivative."
        return
    share = f" ({ours / theirs:.0%})" if theirs else ""
    yield (
        f"Kept for the reverse loop ({_policy(plan)}): {_bytes(ours)}, "
        f"lax.scan keeps {_bytes(theirs)}{share}."
    )


def _residuals(plan) -> Iterator[str]:
    """What is kept of each step, and what is recomputed."""
    if plan.residual_bytes[0] is None:
        return
    rules = plan.derivative
    again = rules.recomputed.ys
    saved = [v for v in rules.saved if v not in again]
    carry = [plan.stages.loop.carry[i] for i in rules.carry_saved]
    yield f"Kept per step: {_list(saved)}; carries before the step: {_list(carry)}."
    if again:
        yield f"Recomputed, {_at_once(plan)}: {_list(again)}."


def _policy(plan) -> str:
    if plan.options.residuals is not None or plan.residuals == "minimal":
        return plan.residuals
    checkpointed = plan.residuals == "chunked"
    why = "for jax.checkpoint" if checkpointed else f"as pays on {plan.machine.kind}"
    return f"{plan.residuals}, {why}"


def _list(found) -> str:
    return ", ".join(v.aval.str_short() for v in found) or "none"


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.4g} {unit}"
        n /= 1000
    return f"{n:.4g} GB"
