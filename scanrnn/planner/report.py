"""What a plan says of itself: a table of contractions, and why things are so."""

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


def render(plan) -> str:
    """The whole report as text."""
    lines = [_headline(plan), *_executors(plan), *_tuning(plan), ""]
    lines += _table(plan.gemms)
    if plan.reason is None:
        lines += ["", *_moves(plan), *_choices(plan), *_stays(plan)]
        lines += ["", *_residuals(plan)]
    if plan.stages is not None:
        lines += ["", *_leaves(plan)]
    return "\n".join(lines)


def _headline(plan) -> str:
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


def _table(rows) -> list[str]:
    head = ("path", "phase", "M", "N", "K", "count", "where")
    body = [tuple(str(v) for v in row) for row in rows]
    if not body:
        return ["No contractions."]
    widths = [max(len(r[i]) for r in (head, *body)) for i in range(len(head))]

    def line(row):
        cells = [
            v.rjust(w) if 2 <= i <= 5 else v.ljust(w)
            for i, (v, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(head), line(["-" * w for w in widths]), *map(line, body)]


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
    """What the cost rules chose, and by which number."""
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
        yield (
            f"Norms before the loop: differentiated {loop.piece} steps at a time, "
            "which fit the fast memory."
        )
    for v in dict.fromkeys(place.whole for place in loop.laid[1].values()):
        yield (
            f"Read in pieces in the loop: {v.aval.str_short()}, one slice of the "
            "sequence for each gate (slices of a slice are slow on a CPU)."
        )
    yield from _bodies(plan)
    if any(map(_is_half, plan.stages.graph.eqns)):
        yield (
            "Products of bfloat16: cotangents are rounded to bfloat16 as the operands "
            "are, and accumulated in float32."
        )


def _bodies(plan) -> Iterator[str]:
    """Every loop that runs."""
    for name, body in plan.bodies.items():
        rows = body.rows
        told = [f"{rows.length} steps"]
        if rows.block > 1:
            told.append(f"{rows.block} per trip, their rows written together")
        if body.unroll != 1:
            each = f"{body.unroll} per trip" if body.unroll else "no loop"
            told.append(f"{each}, each with its own rows")
        names = [e.primitive.name for e in body.graph.eqns if ops.is_heavy(e)]
        told.append(f"{_tally(names)} of {len(body.graph.eqns)} equations")
        if body.transposed:
            told.append(f"{len(body.transposed)} with the features first")
        if rows.over:
            told.append(f"{len(rows.over)} of {len(body.graph.ys)} arrays reuse memory")
        yield f"Loop {name}: {'; '.join(told)}."


def _leaves(plan) -> Iterator[str]:
    """What each leaf of the carry is over time: whether it needs the step before."""
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
    """What decided how many steps go at once."""
    if plan.options.chunk is not None:
        return "chunks as asked for"
    if plan.residuals == "chunked":
        return "chunks that keep the fewest carries"
    if not plan.passing:
        return f"up to {_bytes(plan.rules.outside_bytes)} go at once"
    most = plan.rules.chunk(plan.machine, plan.passing, plan.length)
    return (
        f"up to {min(most, plan.length)} steps go at once, {_bytes(plan.passing)} of "
        "each with what is made again"
    )


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


def _residuals(plan) -> Iterator[str]:
    ours, theirs = plan.residual_bytes
    if ours is None:
        yield "Residuals: the step has no reverse-mode derivative."
        return
    share = f" ({ours / theirs:.0%})" if theirs else ""
    yield (
        f"Kept for the reverse loop ({_policy(plan)}): {_bytes(ours)}, "
        f"lax.scan keeps {_bytes(theirs)}{share}."
    )
    rules = plan.derivative
    again = rules.recomputed.ys
    saved = [v for v in rules.saved if v not in again]
    carry = [plan.stages.loop.carry[i] for i in rules.carry_saved]
    yield f"Per step: {_list(saved)}; carries before the step: {_list(carry)}."
    if again:
        part = f"{plan.chunk} steps" if plan.chunk else "all steps"
        yield f"Recomputed, for {part} at once: {_list(again)}."


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
