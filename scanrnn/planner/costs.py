"""Estimate roughly what a plan costs on a machine, and what a move keeps in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.bodies import Body
from scanrnn.planner.gemms import planned_gemms, scan_gemms
from scanrnn.planner.integers import next_multiple
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.contractions import multiplications, sizes_of
from scanrnn.planner.ir.graph import Graph, variables
from scanrnn.planner.rules import Rules


def operations(plan) -> int | None:
    """The operations of one step; None if the step contains programs of its own."""
    graph = plan.stages.graph
    if any(map(ops.has_subjaxpr, graph.eqns)):
        return None
    bits = graph.depends
    return sum(map(_work_of, (e for e in graph.eqns if bits[e])))


def has_single_rows(plan) -> bool:
    """Whether a step has products, each of one row by a matrix that all steps share."""
    graph = plan.stages.graph
    found = [e for e in graph.eqns if ops.is_heavy(e)]
    return bool(found) and all(_rows(graph, e) == 1 for e in found)


def _rows(graph, eqn) -> int | None:
    """The rows of a product by a matrix that all steps share; None for others."""
    shared = [i for i, v in enumerate(eqn.invars) if not graph.depends[v]]
    if len(shared) != 1 or eqn.primitive.name == ops.CONVOLUTION:
        return None
    return sizes_of(eqn, *shared)[1]


def _work_of(eqn) -> int:
    """Multiplications of a contraction; output elements of any other equation."""
    if ops.is_heavy(eqn):
        return multiplications(eqn)
    return sum(ops.size_of(ops.aval(v)) for v in eqn.outvars)


def excess(kept: Iterable[Var], *anyway: Iterable[Var]) -> int:
    """The marginal cost of moving equations out of a loop, in bytes per step.

    It is what all steps then keep, minus what each step reads and writes anyway, such
    as the matrix of a product. A move does not pay if this is positive.
    """
    return ops.bytes_in(kept) - sum(map(ops.bytes_in, anyway))


def grows(eqn: JaxprEqn) -> bool:
    """Whether an equation is a broadcast or iota that makes more bytes than it reads.

    A bias broadcast over the batch is free inside a fusion. Computed before the loop,
    it would be a `[B, H]` array to load at every step.
    """
    spreads = eqn.primitive.name in ("broadcast_in_dim", "iota")
    return spreads and excess(eqn.outvars, variables(eqn.invars)) > 0


class Work(NamedTuple):
    """What the loops of a training step take, as their executor counts it.

    Attributes:
      launches: the number of launches.
      moved: the bytes that are read and written.
      flops: the operations of products that the step itself does not contain.
      kept: the bytes that are kept for the reverse loop; None for those of the plan.
      inside: the seconds of loops that compute their products inside one kernel.
    """

    launches: float
    moved: float
    flops: float = 0.0
    kept: float | None = None
    inside: float = 0.0


def launches_of_step(body: Body, rules: Rules) -> float:
    """The launches of one step of a loop, besides its products.

    With products or sums, a step has one launch, and one more for each sum. Without
    them, the steps of a trip share its launches. If the rules count no launches of a
    trip, a step has one.
    """
    if rules.costs.trip is None:
        return 1.0
    sums = sum(map(ops.is_reduction, body.graph.eqns))
    if sums or any(map(ops.is_heavy, body.graph.eqns)):
        return 1.0 + sums
    unroll = body.unroll or ops.product([body.rows.length])
    steps = body.rows.trip_steps * unroll
    return (rules.costs.trip + len(body.graph.ys)) / steps


def depth(graph: Graph) -> int:
    """The length of the longest chain of products in a step that need one another.

    Between two of them there is at least one kernel.
    """
    after: dict[Var, int] = {}
    for eqn in graph.eqns:
        before = max((after.get(v, 0) for v in variables(eqn.invars)), default=0)
        after |= dict.fromkeys(eqn.outvars, before + ops.is_heavy(eqn))
    return max(after.values(), default=0)


def starts_in_scan(plan) -> float:
    """The launches of one time step, forward and in reverse, under `lax.scan`.

    Products are not counted. `lax.scan` stacks each array by a kernel of its own.
    """
    ways = _ways(plan)
    if plan.rules.costs.trip is None:
        return ways * max(1, depth(plan.step))
    sums = sum(map(ops.is_reduction, plan.step.eqns))
    step = plan.rules.costs.scan_step * (1.0 + sums)
    return ways * step + len(_kept(plan, in_loop=True))


class Cost(NamedTuple):
    """The cost of a training step, by a simple model.

    The time of a product is the largest of three times: of its arithmetic, of its
    memory traffic, and of its launch. In a loop, reading its matrix takes time besides
    (`CostRules.matrix`). Residuals are written once and read once.

    Attributes:
      flops: floating-point operations of the products.
      moved: bytes that the products read and write.
      kept: bytes that the forward loop keeps for the reverse loop, over all steps.
      arithmetic: seconds of the products that are bound by arithmetic.
      memory: seconds of the products that are bound by memory, and of the residuals.
      dispatch: seconds of the products that are bound by their launch, and of the other
        launches of the loop; or of loops that are one kernel.
    """

    flops: float
    moved: float
    kept: float
    arithmetic: float
    memory: float
    dispatch: float

    @property
    def seconds(self) -> float:
        """The total, in seconds."""
        return self.arithmetic + self.memory + self.dispatch

    @property
    def bound(self) -> str:
        """The name of the largest of the three times."""
        parts = ("arithmetic", "memory", "dispatch")
        return max(parts, key=lambda part: getattr(self, part))


def cost(plan, in_loop: bool = False, loops: Work | None = None) -> Cost:
    """Estimate a training step by a plan.

    Args:
      plan: the plan.
      in_loop: whether everything runs in the loop, as by `lax.scan`.
      loops: what the loops take besides the products of the step, if their executor
        counts it; else one kernel follows each product of a chain in a step, forward
        and in reverse.
    """
    gemms = scan_gemms if in_loop else planned_gemms
    steps = ops.product([plan.length])
    machine = plan.machine
    heavy = [e for e in plan.step.eqns if ops.is_heavy(e)]
    dtype = ops.aval(heavy[0].invars[0]).dtype if heavy else np.dtype("float32")
    peak = machine.peaks.get(str(dtype), machine.peaks["float32"])
    launches, moved, flops, kept, inside = loops or Work(_starts(plan, in_loop), 0.0)
    if kept is None:
        kept = steps * ops.bytes_in(_kept(plan, in_loop))
    seconds = {
        "arithmetic": flops / peak,
        "memory": (moved + 2.0 * kept) / machine.bandwidth,
        "dispatch": launches * machine.launch + inside,
    }
    tile_m, tile_n, tile_k = plan.rules.costs.tile
    for row in gemms(plan, steps):
        flops += row.flops
        if inside and row.where == "loop":
            continue
        padded = (
            next_multiple(row.M, tile_m)
            * next_multiple(row.N, tile_n)
            * next_multiple(row.K, tile_k)
        )
        weights = row.M * row.K
        if dtype.itemsize * weights <= machine.fast_memory * machine.cores:
            weights /= max(1, row.count)  # they stay in fast memory
        bytes_once = dtype.itemsize * (weights + row.K * row.N + row.M * row.N)
        parts = {
            "arithmetic": 2 * padded / peak,
            "memory": bytes_once / machine.bandwidth,
            "dispatch": machine.launch,
        }
        part = max(parts, key=lambda name: parts[name])
        seconds[part] += row.count * parts[part]
        if row.where == "loop":
            read = row.count * dtype.itemsize * row.M * row.K
            seconds["memory"] += read * plan.rules.costs.matrix
        moved += row.count * bytes_once
    return Cost(flops, moved, kept, **seconds)


def summed(costs: Iterable[Cost], times: float) -> Cost:
    """The sum of the costs of several plans; its seconds are multiplied by `times`."""
    flops, moved, kept, *seconds = map(math.fsum, zip(*costs, strict=True))
    return Cost(flops, moved, kept, *(times * s for s in seconds))


def _starts(plan, in_loop: bool) -> float:
    """The launches of a training step's loops besides its products."""
    if in_loop:
        return starts_in_scan(plan) * ops.product([plan.length])
    return _ways(plan) * max(1, depth(plan.stages.loop)) * ops.product([plan.length])


def _ways(plan) -> int:
    """The loops of a training step: one if no leaf of the carry has a gradient."""
    return 1 + any(map(ops.is_inexact, plan.step.carry))


def _kept(plan, in_loop: bool) -> set:
    """The values of a step that are kept for the reverse loop, without its ys."""
    if not in_loop and plan.defer:
        ys = plan.loop.graph.ys
        return {v for v in plan.loop.recording.loop.graph.ys if v not in ys}
    # Without our rule, JAX keeps what the derivative of each equation reads.
    graph = plan.step if plan.stages is None or in_loop else plan.stages.loop
    bits = graph.depends
    kept = {v for eqn in graph.eqns for v in _read_by_derivative(eqn) if bits[v]}
    outs = variables(graph.ys)
    return {v for v in kept if ops.is_inexact(v)}.difference(outs, graph.xs)


def _read_by_derivative(eqn) -> list:
    """The values that the derivative of an equation reads.

    A linear equation needs none. Others need their operands if they have several, else
    their results.
    """
    if eqn.primitive.name in ops.LINEAR:
        return []
    several = len(variables(eqn.invars)) > 1
    return variables(eqn.invars) if several else list(eqn.outvars)
