"""Choose how a sequence is cut: what is recomputed, chunks, the loop of each length."""

from __future__ import annotations

import dataclasses
import math

from scanrnn.planner.derivative.narrowed import are_read_in_part
from scanrnn.planner.integers import divisor
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.loops import Loop
from scanrnn.planner.motion.moved import is_shared
from scanrnn.planner.plan import Plan


def with_chunk(plan: Plan) -> Plan:
    """The plan with its residual policy and the size of its chunks."""
    asked = plan.residuals == "recompute"
    if plan.defer and (asked or _may_recompute(plan)):
        found = _recomputing(plan, asked)
        if found is not None:
            return found
    return dataclasses.replace(plan, chunk=_chunk(plan))


def _may_recompute(plan: Plan) -> bool:
    """Whether the planner is free to recompute, and the rules may allow it."""
    free = plan.options.residuals is None and plan.residuals == "minimal"
    allowed = plan.rules.recompute.allows(made=True, chunked=True)
    return free and allowed and _can_be_cut(plan)


def _recomputing(plan: Plan, asked: bool) -> Plan | None:
    """The plan that recomputes; None if nobody asked and the rules are against it."""
    plan = dataclasses.replace(plan, residuals="recompute")
    stages = plan.stages
    assert stages is not None
    derivative = loop_of(plan, plan.length).derivative
    made = derivative.recomputed.ys
    carries = [stages.loop.carry[i] for i in derivative.carry_saved]
    whole = are_read_in_part(stages.loop, carries)  # Then they are kept whole.
    if not asked and (whole or not _are_shared(derivative.recomputed)):
        return None
    # The gradient of norms reads what they read.
    outside = dict.fromkeys((*stages.norms.xs, *stages.hoisted))
    passing = ops.bytes_in((*made, *outside, *derivative.cuts))
    chunk = _chunk(plan, passing)
    if not asked and not plan.rules.recompute.allows(
        bool(made), chunked=chunk is not None
    ):
        return None
    decides = plan.options.chunk is None and _can_be_cut(plan)
    return dataclasses.replace(plan, chunk=chunk, passing=passing if decides else 0)


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
        size = plan.rules.recompute.chunk(plan.machine, passing, plan.length)
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


def with_value_chunk(plan: Plan) -> Plan:
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
    loops = tuple(loop_of(plan, size) for size in sizes)
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
    even = divisor(length, most)
    return even if 2 * even > most else most


def loop_of(plan: Plan, length) -> Loop:
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
        norm_steps=_norm_steps(plan, length) if laid_out else None,
        features_first=plan.options.features_first,
    )


def _norm_steps(plan: Plan, length) -> int | None:
    """Steps in a piece of the norms before the loop; None if pieces are no use."""
    assert plan.stages is not None
    norms, rules = plan.stages.norms, plan.rules
    size = rules.share(plan.machine, rules.norm_share)
    if not norms.ys or size is None or not isinstance(length, int):
        return None
    row = max(map(ops.bytes_of, (*norms.xs, *norms.ys)))
    if row * length < 2 * size:
        return None
    steps = divisor(length, min(size // row, length - 1), rules.norm_steps)
    return steps if steps < length else None


def chunks_pay(plan: Plan) -> bool:
    """Whether chunks are a gain if nothing leaves the loop.

    For a step that is wholly under `jax.checkpoint`, JAX keeps the carries of all
    steps. Chunks keep those before each chunk, and what one chunk saves. For layers of
    a transformer (12 steps), chunks of three took 1.7 times the memory, and 1.2 times
    the time. They are a gain also if gradients of weights are then computed by chunks.
    """
    if not _in_chunks(plan):
        return True
    loop = plan.loop.graph
    if any(is_shared(e, loop.depends) for e in loop.eqns):
        return True
    starts, each = _memory(plan)
    assert plan.chunk is not None
    return starts + plan.chunk * each < plan.length * ops.bytes_in(loop.carry)


def chunks_take_more(plan: Plan) -> bool:
    """Whether chunks take much more memory than JAX itself would take.

    That is more than twice as much, and a share of what may be outside a loop besides.
    JAX keeps the carries of all steps, and the values of one step. An example is a loss
    over a vocabulary, added up over microbatches: its carry is one number. Chunks that
    take a few megabytes are worth it: with one row in a step they were three times as
    fast.
    """
    if not _in_chunks(plan) or plan.options.chunk is not None:
        return False
    starts, each = _memory(plan)
    each += plan.outside_bytes // plan.length
    own = plan.length * ops.bytes_in(plan.loop.graph.carry) + each
    return starts + plan.chunk * each > 2 * own + plan.rules.outside_bytes // 16


def _in_chunks(plan: Plan) -> bool:
    """Whether a plan runs in chunks because its whole step is under a checkpoint."""
    checkpointed = plan.options.residuals is None and plan.residuals == "chunked"
    return checkpointed and plan.chunk is not None


def _memory(plan: Plan) -> tuple[int, int]:
    """The bytes of the carries before all chunks, and what a step of a chunk saves."""
    carry = ops.bytes_in(plan.loop.graph.carry)
    saved = ops.bytes_in(plan.derivative.saved) if plan.defer else 0
    return carry * math.ceil(plan.length / plan.chunk), saved
