"""Make every choice of a plan, once: from a traced step to a plan for a machine."""

from __future__ import annotations

import dataclasses
import itertools
import math

from jax.core import Tracer

from scanrnn.machines import Machine
from scanrnn.planner import layout, ops, rewrite, tidy
from scanrnn.planner.checkpoints import chunks_pay, chunks_take_more, is_checkpointed
from scanrnn.planner.classify import Stages, can_defer, classify
from scanrnn.planner.cuts import cut
from scanrnn.planner.equal import merged
from scanrnn.planner.fission import Part
from scanrnn.planner.graph import Graph, inside, variables
from scanrnn.planner.loops import Loop
from scanrnn.planner.moved import is_shared, spare_of
from scanrnn.planner.options import Options
from scanrnn.planner.plan import Plan
from scanrnn.planner.rules import Rules
from scanrnn.planner.tangent import derivative_of
from scanrnn.planner.trace import Traced, inline, without_invariant


def make_plan(
    traced: Traced | Part,
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
      rules: what the executor prefers on that machine.
      reverse: whether the loop runs from the last step to the first.
      unroll: the unroll factor; 0 for a fully unrolled loop.

    Returns:
      A `Plan` without an executor.
    """
    graph = traced.graph
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
    spare = spare_of(machine)
    stages = classify(graph, options.hoist, options.sink, spare, rules.draws_before)
    plan = dataclasses.replace(
        base,
        stages=stages,
        consts=(*consts, *more),
        invariant=invariant,
        defer=options.defer and can_defer(stages.loop),
    )
    plan = _kept(plan)
    whole = plan.chunk or plan.length
    rest = plan.length % whole if plan.chunk else 0
    loops = tuple(_loop(plan, size) for size in ([whole, rest] if rest else [whole]))
    plan = dataclasses.replace(plan, loops=loops)
    plan = _with_value_chunk(plan)
    if not _moves(stages) and not _keeps_less(plan):
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


def _kept(plan: Plan) -> Plan:
    """The plan with its residual policy and the size of its chunks."""
    asked = plan.residuals == "recompute"
    may = plan.options.residuals is None and plan.residuals == "minimal"
    may = may and plan.rules.may_recompute(made=True, cut=True) and _can_be_cut(plan)
    kept = dataclasses.replace(plan, chunk=_chunk(plan))
    if not plan.defer or not (asked or may):
        return kept
    recomputing = dataclasses.replace(plan, residuals="recompute")
    assert plan.stages is not None
    derivative = _loop(recomputing, plan.length).derivative
    made = derivative.recomputed.ys
    if not asked and not _are_shared(derivative.recomputed):
        return kept
    passing = ops.bytes_in((*made, *plan.stages.hoisted, *derivative.cuts))
    chunk = _chunk(recomputing, passing)
    if not asked and not plan.rules.may_recompute(bool(made), cut=chunk is not None):
        return kept
    decides = plan.options.chunk is None and _can_be_cut(plan)
    passing = passing if decides else 0
    return dataclasses.replace(recomputing, chunk=chunk, passing=passing)


def _are_shared(graph: Graph) -> bool:
    """Whether all contractions of a graph have a matrix that all steps share.

    Only these are one product for all steps. Chunks of a gated delta rule read a matrix
    of each step's own: for a TPU v5e, recomputing that took 2.0 times the cycles.
    """
    bits = graph.depends
    return all(is_shared(e, bits) for e in graph.eqns if ops.is_heavy(e))


def _chunk(plan: Plan, passing: int = 0) -> int | None:
    """Steps per chunk, or None to run the sequence as a whole.

    `passing` is the number of bytes per step that live only as long as their chunk.
    """
    if not _can_be_cut(plan):
        return None
    size, most = plan.options.chunk, plan.rules.outside_bytes
    outside = plan.outside_bytes
    if size is None and plan.residuals == "chunked":
        size = _even(plan.length, math.isqrt(plan.length))
    elif size is None and passing:
        size = plan.rules.chunk(plan.machine, passing, plan.length)
        size = _even(plan.length, size)
    elif size is None and outside > most:
        size = _even(plan.length, max(1, plan.length * most // outside))
    return None if size is None or size >= plan.length else size


def _can_be_cut(plan: Plan) -> bool:
    """Whether a sequence may run in chunks.

    It may not if a step changes the weak type of a carry. Then the carry after one
    chunk has another type than the one with which the next chunk must start.
    """
    pairs = zip(plan.source.carry, plan.source.carry_out, strict=True)
    changes = any(ops.is_weak(v) != ops.is_weak(out) for v, out in pairs)
    return isinstance(plan.length, int) and not changes


def _with_value_chunk(plan: Plan) -> Plan:
    """The plan with its chunks for values alone, without a gradient, and their loops.

    Outputs that reuse a buffer need no memory of their own. A chunk may be as large as
    the matrices that multiply it: smaller chunks would spend their time reading these.
    A sequence of less than two chunks is not cut: copying the xs and ys of chunks takes
    3 % of the time.
    """
    most = plan.rules.share(plan.machine, plan.rules.forward_share)
    asked = plan.options.chunk is not None
    if most is None or asked or plan.unroll == 0 or not _can_be_cut(plan):
        return plan
    over = plan.length * ops.bytes_in(plan.loop.overwritten.values())
    outside = plan.outside_bytes - over
    most = max(most, plan.matrix_bytes)
    size = plan.length
    large = plan.outside_bytes >= plan.length * plan.matrix_bytes
    if plan.rules.convolves_by_step and large and _convolves(plan):
        size = 1
    elif outside >= max(1, 2 * most):
        size = _even(size, max(1, size * most // outside))
    if size == (plan.chunk or plan.length):
        return plan
    sizes = [size, *filter(None, [plan.length % size])]
    loops = tuple(_loop(plan, size) for size in sizes)
    return dataclasses.replace(plan, value_chunk=size, value_loops=loops)


def _convolves(plan: Plan) -> bool:
    """Whether the products before the loop are convolutions."""
    assert plan.stages is not None
    heavy = [e for e in plan.stages.before.eqns if ops.is_heavy(e)]
    return bool(heavy) and all(e.primitive.name == ops.CONVOLUTION for e in heavy)


def _even(length: int, most: int) -> int:
    """Steps of a chunk, at most `most`: a divisor of `length` if that is not too small.

    A shorter last chunk would need a second compiled loop.
    """
    even = cut(length, most)
    return even if 2 * even > most else most


def _loop(plan: Plan, length) -> Loop:
    """The loop for `length` steps, with all its choices."""
    stages, rules = plan.stages, plan.rules
    assert stages is not None
    # Gates are read from the whole sequence only under our derivative rule. JAX would
    # add to a cotangent as long as the sequence at every step.
    laid_out = plan.options.layout and plan.defer
    return Loop(
        graph=stages.loop,
        length=length,
        reverse=plan.reverse,
        unroll=plan.unroll,
        residuals=plan.residuals,
        laid_out=laid_out,
        machine=plan.machine,
        rules=rules,
        spare=frozenset(v for v in stages.hoisted if v not in stages.after.xs),
        piece=_piece(plan, length) if laid_out else None,
    )


def _piece(plan: Plan, length) -> int | None:
    """Steps in a piece of the norms before the loop; None if pieces are no use."""
    assert plan.stages is not None
    norms, rules = plan.stages.norms, plan.rules
    size = rules.share(plan.machine, rules.norm_share)
    if not norms.ys or size is None or not isinstance(length, int):
        return None
    row = max(map(ops.bytes_of, (*norms.xs, *norms.ys)))
    if row * length < 2 * size:
        return None
    steps = cut(length, min(size // row, length - 1), rules.norm_steps)
    return steps if steps < length else None


def _left_alone(graph, length, options) -> str | None:
    """Why a step is not planned at all, or None."""
    if options.implementation == "scan":
        return "implementation='scan'"
    if isinstance(length, int) and length == 0:
        return "there are no steps (length is 0)"
    effects = {str(e) for eqn in graph.eqns for e in eqn.effects}
    if effects:
        named = ", ".join(sorted(effects))
        return f"it has side effects or collectives, in an order of their own ({named})"
    every = [*itertools.chain.from_iterable((e, *inside(e)) for e in graph.eqns)]
    if any(eqn.primitive.name == "rng_uniform" for eqn in every):
        return "the step draws random numbers without a key (lax.rng_uniform)"
    if any(map(_reads_a_tracer, every)):
        return "the rule of a jax.custom_jvp reads a traced value of another function"
    return None


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
