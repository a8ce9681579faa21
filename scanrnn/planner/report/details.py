"""Describe every decision of a plan in words."""

from __future__ import annotations

from collections.abc import Iterator

from scanrnn.planner.emit import REVERSE
from scanrnn.planner.gemms import placed
from scanrnn.planner.ir import ops
from scanrnn.planner.report.wording import (
    at_once,
    in_bytes,
    kinds_of_leaves,
    listed,
    tally,
)


def details(plan) -> list[str]:
    """The lines about every decision, and about executors that cannot run the plan."""
    of_parts = [
        f"Part {i}: {line}"
        for i, (_, loop) in enumerate(plan.parts, 1)
        for line in _decisions(loop)
    ]
    return [*_decisions(plan), *of_parts, *_impossible(plan)]


def _decisions(plan) -> list[str]:
    """The lines about a plan that is made of bodies; none for others."""
    if plan.reason is not None or plan.executor.whole:
        return []
    return [*_moves(plan), *_choices(plan), *_residuals(plan)]


def _moves(plan) -> Iterator[str]:
    stages, names = plan.stages, {}
    for eqn, where in placed(stages):
        names.setdefault(where, []).append(eqn.primitive.name)
    hoisted = stages.hoisted
    more = f"; of this the loop reads {listed(hoisted)} per step" if hoisted else ""
    yield f"Before the loop: {tally(names.get('before'))}{more}."
    yield f"In the loop:     {tally(names.get('loop'))}."
    yield f"After the loop:  {tally(names.get('after'))}."
    if cuts := plan.defer and plan.derivative.cuts:
        yield (
            "Weight gradients: after the reverse loop, batched over time, from "
            f"cotangents of {listed(cuts)} per step."
        )
    if plan.invariant:
        yield f"Carry leaves {list(plan.invariant)} never change: treated as weights."


def _choices(plan) -> Iterator[str]:
    """The choices of the cost rules, with the numbers that decided them."""
    loop = plan.loop
    if plan.hoisted_bytes:
        size = in_bytes(plan.hoisted_bytes)
        part = f"{plan.chunk} steps at a time" if plan.chunk else "all steps at once"
        yield f"Hoisted {part}: {size} in all; {_rule_of_chunks(plan)}."
    for v in dict.fromkeys(place.whole for place in loop.laid[1].values()):
        how = "one slice of the sequence for each gate"
        yield f"Read in pieces in the loop: {listed([v])}, {how}."
    body = plan.bodies.get(REVERSE)
    told = kinds_of_leaves(" in reverse", body.graph) if body else ""
    if told:
        yield told
    if any(map(_is_half, plan.stages.graph.eqns)):
        how = "rounded to bfloat16 as the operands are, and accumulated in float32"
        yield f"Products of bfloat16: cotangents are {how}."


def _rule_of_chunks(plan) -> str:
    """The rule that decided how many steps are computed at once."""
    if plan.options.chunk is not None:
        return "chunks as asked for"
    if plan.residuals == "chunked":
        return "chunks that keep the fewest carries"
    if not plan.passing:
        return f"up to {in_bytes(plan.rules.outside_bytes)} go at once"
    most = plan.rules.recompute.chunk(plan.machine, plan.passing, plan.length)
    size = f"{in_bytes(plan.passing)} per step with what is recomputed"
    return f"up to {min(most, plan.length)} steps go at once, {size}"


def _is_half(eqn) -> bool:
    return eqn.primitive.name == "dot_general" and all(
        not ops.is_literal(a) and str(ops.aval(a).dtype) == "bfloat16"
        for a in eqn.invars
    )


def _residuals(plan) -> Iterator[str]:
    """What the planner's derivative rule keeps of each step, and what it recomputes."""
    if not plan.defer or plan.residual_bytes[0] is None:
        return
    derivative = plan.derivative
    recomputed = derivative.recomputed.ys
    saved = [v for v in derivative.saved if v not in recomputed]
    carry = [plan.stages.loop.carry[i] for i in derivative.carry_saved]
    yield f"Kept per step: {listed(saved)}; carries before the step: {listed(carry)}."
    if recomputed:
        yield f"Recomputed, {at_once(plan)}: {listed(recomputed)}."


def _impossible(plan) -> Iterator[str]:
    """The executors that cannot run the plan, and why."""
    for candidate in plan.candidates:
        if candidate.refusal is not None:
            yield f"Not possible by {candidate.name}: {candidate.refusal}."
