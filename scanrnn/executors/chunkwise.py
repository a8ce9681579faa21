"""Run steps with matrix memories by products of chunks of steps.

Other leaves of the carry run before or after: in parallel over time if the rules allow
it, else step by step. JAX differentiates the program. It keeps the memory at the start
of each chunk, and what the chunks read.

References:
    Hua et al., "Transformer quality in linear time", 2022, arXiv:2202.10447.
    Yang et al., "Gated linear attention transformers with hardware-efficient
    training", 2023, arXiv:2312.06635.
    Dao and Gu, "Transformers are SSMs", 2024, arXiv:2405.21060.
"""

from __future__ import annotations

import functools
import math

from scanrnn.executors import associative, scan
from scanrnn.executors._executor import bound_to_jax
from scanrnn.executors.parallel import all_steps
from scanrnn.executors.parallel.memories import run_memory
from scanrnn.executors.parallel.pairs import FEW
from scanrnn.executors.run.names import named
from scanrnn.executors.run.program import (
    entering,
    told_without_gradient,
    without_gradient_by_loop,
)
from scanrnn.planner import costs
from scanrnn.planner.emit import plain
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Graph
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.motion.over_time import keep_products, stage_over_time
from scanrnn.planner.parallel import affine
from scanrnn.planner.parallel.memories import Memory, memories, memory
from scanrnn.planner.parallel.obstacles import DRAWS, types_of
from scanrnn.planner.plan import Plan
from scanrnn.planner.rules import Rules

NAME = "chunkwise"

# Every executor finds the same memories in the step, so all reasons are early ones.
rules, refuse = associative.rules, scan.refuse


def refuse_early(plan: Plan) -> str | None:
    """Why no plan of this step runs here, or None."""
    if why := bound_to_jax(plan):
        return why
    assert plan.stages is not None
    asked = plan.options.implementation == NAME
    if (plan.options.residuals, plan.options.chunk) != (None, None):
        return "it takes neither residuals= nor chunk=; leave both out"
    graph = plan.stages.graph
    if ops.draws_apart(graph.eqns):
        return DRAWS
    if not memories(graph):
        why = (memory(graph, group) for group in affine.groups(graph))
        return f"no leaf is a matrix memory: {'; '.join(map(str, why))}"
    if asked:
        return None
    operations = costs.operations(plan)
    if operations is not None and operations < plan.rules.least_work:
        return f"a step is only {operations} operations"
    size = sum(ops.size_of(ops.aval(graph.carry[k])) for k in memories(graph))
    if size < plan.rules.memories.least:
        return f"the memory has only {size} numbers"
    small = all(_is_small(plan, one) for one in memories(graph).values())
    return "products with matrices of so few numbers are fast" if small else None


def _is_small(plan: Plan, one: Memory) -> bool:
    """Whether products read matrices with fewer numbers than chunks pay for."""
    assert plan.stages is not None
    graph, least = plan.stages.graph, plan.rules.memories.matrix
    S = ops.aval(graph.carry[one.leaf])
    size = ops.product(S.shape[i] for i in one.matrix(S.ndim))
    more = one.decays_by_key or one.correction is not None
    return size < least[more] and _reads_by_products(graph, one)


def _reads_by_products(graph: Graph, one: Memory) -> bool:
    """Whether a step reads a memory by products, and not by sums over an axis."""
    makers = (graph.producer(asked.out) for asked in one.reads)
    return all(e is not None and e.primitive.name in ops.PRODUCTS for e in makers)


def work(plan: Plan) -> costs.Work:
    """What a training step takes besides the products of the step."""
    assert plan.stages is not None
    graph, works = plan.stages.graph, []
    for group in affine.groups(graph):
        if one := memories(graph).get(group.leaves[0]):
            works.append(_work(plan, ops.aval(graph.carry[one.leaf]), one))
        else:
            kept = plan.length * ops.bytes_in(graph.carry[k] for k in group.leaves)
            one_way = costs.Work(plan.length, 0.0)
            if plan.rules.in_parallel:
                one_way = associative.work_of(graph, group, plan)
            works.append(costs.Work(2 * one_way.launches, 2 * one_way.moved, 0.0, kept))
    return costs.Work(*map(math.fsum, zip(*works, strict=True)))


def _work(plan: Plan, S, one: Memory) -> costs.Work:
    """What a training step takes for a memory S: three times the forward products."""
    steps, size = _steps(plan, one), ops.size_of(S)
    keys = ops.product([S.shape[one.axis]])
    inner, outer = ops.product(S.shape[i] for i in one.inner), size // keys
    reads, writes = len(one.reads) + bool(one.correction), len(one.writes)
    flops = 2.0 * (reads * writes * steps * (inner + outer) + (reads + writes) * size)
    pairs = steps * inner // keys
    if one.decays_by_key:
        pairs = reads * writes * min(steps, FEW) * inner
    moved = (reads + writes) * (inner + outer) / 2 + pairs
    width, trips = S.dtype.itemsize, -(-plan.length // steps)
    taken = plan.rules.costs.parallel
    launches = taken.chunk + taken.correcting * bool(one.correction)
    if one.decays_by_key:
        levels = max(steps // FEW, 1).bit_length()
        launches += taken.halving * reads * writes * levels
    return costs.Work(
        launches=launches * trips,
        moved=taken.chunk_passes * plan.length * moved * width,
        flops=3 * plan.length * flops,
        kept=trips * size * width,
    )


def _steps(plan: Plan, one: Memory) -> int:
    """The number of steps in a chunk."""
    return min(plan.rules.memories.steps[one.decays_by_key], max(plan.length, 1))


def describe(plan: Plan) -> list[str]:
    """How each leaf of the carry runs, in words."""
    assert plan.stages is not None
    graph, lines = plan.stages.graph, []
    for group in affine.groups(graph):
        how = "step by step"
        if one := memories(graph).get(group.leaves[0]):
            kind = "a matrix memory" + (", by a delta rule" if one.correction else "")
            how = f"by products of chunks of {_steps(plan, one)} steps: {kind}"
        elif group.kind == "constant":
            how = "for all steps at once"
        elif plan.rules.in_parallel and group.parallel:
            how = f"in parallel over time: it is {group.kind}"
        lines.append(f"{types_of(graph, group)} runs {how}.")
    if _loops_without_gradient(plan):
        lines.append("Without a gradient: one loop, which is faster here.")
        lines += told_without_gradient(plan)
    return lines


def run(plan: Plan, weights: list, init: list, xs: list, differentiated=False):
    """Run a plan on flat values. Returns the final carry and the ys, flat.

    Where rules say so, a pass without a gradient runs as a loop, unless chunks are
    asked for by name.
    """
    program, args = functools.partial(_run, plan), (weights, init, xs)
    if not _loops_without_gradient(plan):
        return program(*args)
    return without_gradient_by_loop(plan, program, args, differentiated)


def _loops_without_gradient(plan: Plan) -> bool:
    """Whether a pass without a gradient runs as a loop."""
    assert plan.stages is not None
    if not plan.rules.memories.loops_values or plan.options.implementation == NAME:
        return False
    graph = plan.stages.graph
    return all(_reads_by_products(graph, one) for one in memories(graph).values())


def _run(plan: Plan, weights: list, init: list, xs: list):
    assert plan.stages is not None
    stages, rows = plan.stages, Rows(plan.length, plan.reverse)
    graph, (values, moving) = stages.graph, entering(plan, weights, init)
    carry, final = [init[i] for i in moving], dict(enumerate(init))
    values |= named(graph.xs, xs)
    made = Env(stages.constants.eqns, values).read_all(stages.constants.ys)
    given = values | named(stages.constants.ys, made)
    early = stage_over_time(stages.before, given, plan.length, keep_products)
    values |= named(stages.before.ys, early)
    for group in affine.groups(graph):
        starts = [carry[k] for k in group.leaves]
        if one := memories(graph).get(group.leaves[0]):
            args = starts[0], values, rows, _steps(plan, one)
            ends = [run_memory(graph, one, *args)]
        else:
            ends = _others(graph, group, starts, values, rows, plan.rules)
        final |= {moving[k]: end for k, end in zip(group.leaves, ends, strict=True)}
    ys = all_steps.over_time(graph, graph.ys, values, rows.length)
    return list(final.values()), ys


def _others(graph: Graph, group, starts, values, rows: Rows, rules: Rules) -> list:
    """Add the values of leaves that are no memories. Returns those after all steps."""
    outs = [graph.carry_out[k] for k in group.leaves]
    if group.kind == "constant":
        after = all_steps.over_time(graph, outs, values, rows.length)
    else:
        given = all_steps.arrays_of(graph, values)
        part = graph.part(outs, given, group.leaves)
        body = plain(part, rows.length, rows.reverse, scans=rules.scans)
        at_once = rules.in_parallel and group.parallel
        lower_body = associative.lower if at_once else scan.lower
        after = lower_body(body, values, starts, values)[1]
    return [
        all_steps.record(graph, k, start, found, rows, values)
        for k, start, found in zip(group.leaves, starts, after, strict=True)
    ]
