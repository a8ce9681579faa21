"""Make every choice of a plan, once: from a traced step to a plan for a machine."""

from __future__ import annotations

import dataclasses
import itertools

from jax.core import Tracer

from scanrnn.machines import Machine
from scanrnn.planner.chunks import (
    chunks_pay,
    chunks_take_more,
    loop_of,
    with_chunk,
    with_value_chunk,
)
from scanrnn.planner.derivative.checkpoints import is_checkpointed
from scanrnn.planner.derivative.tangent import derivative_of
from scanrnn.planner.fission import SubLoop
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, inside, variables
from scanrnn.planner.motion.classify import (
    Stages,
    can_defer,
    classify,
    runs_programs_again,
)
from scanrnn.planner.options import UNCHANGED, Options
from scanrnn.planner.passes import layout, rewrite, tidy
from scanrnn.planner.passes.equal import merged
from scanrnn.planner.passes.spread import spread_rows
from scanrnn.planner.plan import Plan
from scanrnn.planner.rules import Rules
from scanrnn.planner.trace import Traced, inline, without_invariant


def make_plan(
    traced: Traced | SubLoop,
    options: Options,
    machine: Machine,
    rules: Rules,
    reverse: bool = False,
    unroll: int = 1,
) -> Plan:
    """Plan a traced step for a machine, under the rules of one executor.

    Args:
      traced: the step.
      options: which passes run, and what is kept.
      machine: the machine to plan for.
      rules: what the executor prefers on that machine; options go before them.
      reverse: whether the loop runs from the last step to the first.
      unroll: the unroll factor; 0 for a fully unrolled loop.

    Returns:
      A `Plan` without an executor.
    """
    graph, rules = traced.graph, rules.with_features_first(options.features_first)
    own = "chunked" if is_checkpointed(graph) else "minimal"
    base = Plan(
        options=options,
        machine=machine,
        rules=rules,
        source=graph,
        length=traced.length,
        reverse=reverse,
        unroll=unroll,
        residuals=options.residuals or own,
    )
    reason = _left_alone(graph, traced.length, options)
    if reason is not None:
        return dataclasses.replace(base, unplanned=reason)
    graph, invariant = without_invariant(graph)
    graph, consts = inline(graph)
    graph, more = _rewrite(graph, options)
    room = rules.room(machine)
    stages = classify(graph, options.hoist, options.sink, room, rules.draws_before)
    plan = dataclasses.replace(
        base,
        stages=stages,
        consts=(*consts, *more),
        invariant=invariant,
        defer=options.defer
        and can_defer(stages.loop)
        and not (rules.keeps_costly and runs_programs_again(stages.loop)),
    )
    plan = with_chunk(plan)
    whole = plan.chunk or plan.length
    rest = plan.length % whole if plan.chunk else 0
    loops = tuple(loop_of(plan, size) for size in ([whole, rest] if rest else [whole]))
    plan = dataclasses.replace(plan, loops=loops)
    plan = with_value_chunk(plan)
    if not (_moves(stages) or _keeps_less(plan) or _copies(plan)):
        # The plan keeps its loops: an executor may run them in parallel over time.
        reason = "nothing in the step can be moved, merged or deferred"
        return dataclasses.replace(plan, unplanned=reason)
    if options.implementation is None and chunks_take_more(plan):
        reason = "chunks would take more memory than the step's own jax.checkpoint"
        return dataclasses.replace(plan, unplanned=reason)
    return plan


def _moves(stages: Stages) -> bool:
    """Whether something leaves the loop, besides what needs no input at all.

    That is a mask, say, which XLA takes out of a loop too.
    """
    stay, made = len(stages.loop.eqns), set()
    for eqn in stages.constants.eqns:
        if made.issuperset(variables(eqn.invars)):
            made.update(eqn.outvars)
            stay += 1
    return bool(stages.hoisted) or stay < len(stages.graph.eqns)


def _keeps_less(plan: Plan) -> bool:
    """Whether the planner's derivative rule is a gain although nothing leaves the loop.

    JAX keeps what every equation reads. The planner's rule keeps the carry and the
    results of contractions. With it, selective scans, RWKV's state and chunks of a
    delta rule take a third to a half of the memory, and on a CPU some 0.7 of the time.
    There is no gain if the rule keeps nothing and has no cuts.
    """
    d = plan.derivative if plan.defer else None
    keeps = d is not None and (d.cuts or d.saved or d.carry_saved)
    return bool(keeps) and chunks_pay(plan)


def _copies(plan: Plan) -> bool:
    """Whether the loop gains by copies of rows, as `Rules.spreads` says."""
    least = plan.rules.spreads if plan.defer else None
    return least is not None and bool(spread_rows(plan.loop.graph, least))


def _left_alone(graph, length, options) -> str | None:
    """Why a step is not planned at all, or None."""
    if options.implementation == UNCHANGED:
        return f"implementation={UNCHANGED!r}"
    if isinstance(length, int) and length == 0:
        return "there are no steps (length is 0)"
    effects = {str(e) for eqn in graph.eqns for e in eqn.effects}
    if effects:
        named = ", ".join(sorted(effects))
        return f"it has side effects or collectives, in an order of their own ({named})"
    every = [*itertools.chain.from_iterable((e, *inside(e)) for e in graph.eqns)]
    if any(eqn.primitive.name == "rng_uniform" for eqn in every):
        return "the step draws random numbers without a key (lax.rng_uniform)"
    if any(map(_enters_a_mesh, graph.carry, graph.carry_out)):
        return (
            "the carry starts on no mesh, and the step shards it over Explicit axes "
            "(call jax.set_mesh, and start with a carry that is sharded so)"
        )
    if any(map(_reads_a_tracer, every)):
        return "the rule of a jax.custom_jvp reads a traced value of another function"
    return None


def _enters_a_mesh(before, after) -> bool:
    """Whether a carry is on no mesh until the step shards it over Explicit axes.

    Without `jax.set_mesh`, `lax.scan` allows that. Its cotangent then has another type
    before the step than after it, so rules that add the two up would fail.
    """
    found = [
        any(rewrite.is_sharded(v, axis) for axis in range(ops.aval(v).ndim))
        for v in (before, after)
    ]
    return found[0] != found[1]


def _reads_a_tracer(eqn) -> bool:
    """Whether an equation has a derivative rule that closes over a traced value."""
    custom = eqn.primitive.name == "custom_jvp_call"
    rule = derivative_of(eqn) if custom else None
    return rule is not None and any(isinstance(c, Tracer) for c in rule.consts)


def _rewrite(graph, options) -> tuple[Graph, list]:
    passes = [
        (True, tidy.transpose_products),
        (options.split, rewrite.split),
        (options.merge, rewrite.merge),
        (True, tidy.gather_slices),
        (True, tidy.join_splits),
        (True, tidy.cancel_splits),
        (True, tidy.regroup_sums),
        (options.layout, layout.push_splits),
    ]
    graph, consts = merged(graph), []
    for enabled, rule in passes:
        if enabled:
            graph, new = rule(graph)
            consts += new
    return graph, consts
