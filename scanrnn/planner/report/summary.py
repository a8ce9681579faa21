"""Describe a plan in words: what runs, what limits it, and every decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import CARRY, needed, variables
from scanrnn.planner.report import in_parallel
from scanrnn.planner.report.details import details
from scanrnn.planner.report.recorded import copies_rows, unrecorded
from scanrnn.planner.report.running import running
from scanrnn.planner.report.wording import in_bytes, kinds_of_leaves, listed


class Report(NamedTuple):
    """Lines of text about a plan, before and after its table of products."""

    summary: list[str]
    limits: list[str]
    details: list[str]


def report(plan) -> Report:
    """The lines of a plan: what runs, why no more is moved, and every decision."""
    summary = [headline(plan), *_executors(plan), *_tuning(plan), *running(plan)]
    limits = [] if plan.stages is None else [kinds_of_leaves("", plan.stages.loop)]
    if plan.reason is None and (plan.parts or not plan.executor.whole):
        summary += _kept(plan)
    if plan.reason is None and not plan.executor.whole:
        limits = [*_recurrent(plan), *_stays(plan), *limits, in_parallel.newton(plan)]
    limits += _unrecorded(plan)
    return Report(summary, [line for line in limits if line], details(plan))


def headline(plan) -> str:
    """The first line: how many steps, and what is left in the loop."""
    direction = " in reverse" if plan.reverse else ""
    head = f"{plan.length} steps{direction}"
    if plan.reason is not None:
        return f"Plan: {head}, run by lax.scan unchanged: {plan.reason}."
    if plan.executor.whole:
        return f"Plan: {head}, run by the executor {plan.executor.name}."
    here = sum(map(ops.is_heavy, plan.stages.loop.eqns))
    was = sum(map(ops.is_heavy, plan.stages.graph.eqns))
    if plan.chunk:
        head += f" in chunks of {plan.chunk}"
        if plan.options.chunk is None and plan.residuals != "chunked":
            size = plan.length * plan.passing or plan.outside_bytes
            head += f" (at once it would take {in_bytes(size)})"
    if not was:
        return f"Plan: {head}, without GEMMs (matrix products)."
    gemms = "GEMM (matrix product)" if was == 1 else "GEMMs (matrix products)"
    stay = "stay" if here > 1 else "stays"
    return f"Plan: {head}, {here or 'none'} of {was} {gemms} {stay} in the loop."


def _executors(plan) -> Iterator[str]:
    """The estimates of the executors that can run it, the chosen one first."""
    able = [c for c in plan.candidates if c.refusal is None]
    able.sort(key=lambda c: c.name != plan.executor.name)
    told = ", ".join(f"{c.name} {1e3 * c.seconds:.3g} ms" for c in able)
    if told:
        yield f"On {plan.machine.kind}, estimates of a training step: {told}."


def _tuning(plan) -> Iterator[str]:
    if plan.tuning is None:
        return
    objective, chosen, seconds, remembered = plan.tuning
    times = ", ".join(f"{name} {1e3 * s:.4g} ms" for name, s in seconds.items())
    where = f"remembered in {remembered}" if remembered else "not remembered"
    yield f"Tuned ({objective}): {chosen} is used; medians: {times}; {where}."


def _recurrent(plan) -> Iterator[str]:
    """The products that no pass can move."""
    loop = plan.stages.loop
    bits, heavy = loop.depends, [e for e in loop.eqns if ops.is_heavy(e)]
    if bound := sum(bool(bits[e] & CARRY) for e in heavy):
        need = f"need{'s' * (bound == 1)} the carry of the step before"
        yield f"Why not more: {bound} GEMM{'s' * (bound > 1)} per step {need}."
    elif not heavy:
        yield "Why not more: no GEMM is left in the loop."


def _stays(plan) -> Iterator[str]:
    """Products and weights that a pass had to leave alone, and why."""
    loop = plan.stages.loop
    bits = loop.depends
    for eqn in loop.eqns:
        name = eqn.primitive.name
        if compat.is_checkpoint(eqn):
            yield "Left in the loop: jax.checkpoint (its author says what it keeps)."
        elif name == ops.RULED:
            yield "Left in the loop: a planned scan (it has a plan of its own)."
        elif ops.has_subjaxpr(eqn) and name != "custom_jvp_call":
            yield f"Left in the loop: {name} ({_why(name)})."
        elif ops.is_heavy(eqn) and not bits[eqn] & CARRY:
            why = _bound(eqn, loop) if plan.options.hoist else "Options(hoist=False)"
            yield f"Left in the loop: a time-parallel {name} ({why})."
    if not plan.defer:
        rule = (
            "jax.custom_vjp, loops or branches with most of the products, or what "
            "cannot be batched"
        )
        why = "Options(defer=False)" if not plan.options.defer else rule
        yield f"Weight gradients stay in the reverse loop: {why}."
        return
    inner = [w for w in loop.weights if w in plan.derivative.inner_weights]
    inner = list(filter(ops.is_inexact, inner))
    if inner:
        yield (
            f"Gradients summed in the reverse loop, for {listed(inner)}: "
            "norm gains, weights of an operation that cannot move, or weights smaller "
            "than what every step would keep for their gradients."
        )


def _unrecorded(plan) -> Iterator[str]:
    """What ends a graph of kernels in a loop, so that the host starts it."""
    graphs = [body.graph for body in plan.bodies.values()] or [plan.source]
    found = [name for g in graphs for name in unrecorded(g.eqns, plan.rules)]
    if plan.rules.unrecorded and any(map(copies_rows, plan.bodies.values())):
        found.append("copies of rows")
    if names := ", ".join(dict.fromkeys(found)):
        yield (
            f"Not in a CUDA graph: {names}. The host starts each of them, and a graph "
            "ends there, in every trip of its loop."
        )


def _bound(eqn, loop) -> str:
    """The operation that keeps a product of time inputs in the loop, in words."""
    made = needed(loop.eqns, variables(eqn.invars))
    stay = [e.primitive.name for e in made if not ops.is_movable(e)]
    if not stay:
        return "it cannot be batched over time"
    return f"it reads {stay[-1]}, which cannot be batched over time"


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
        f"Kept for the reverse loop ({_policy(plan)}): {in_bytes(ours)}, "
        f"lax.scan keeps {in_bytes(theirs)}{share}."
    )


def _policy(plan) -> str:
    if plan.options.residuals is not None or plan.residuals == "minimal":
        return plan.residuals
    checkpointed = plan.residuals == "chunked"
    why = "for jax.checkpoint" if checkpointed else f"chosen for {plan.machine.kind}"
    return f"{plan.residuals}, {why}"
