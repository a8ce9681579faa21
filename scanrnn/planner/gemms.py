"""List every contraction of a plan, with its sizes and how often it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.contractions import sizes_of
from scanrnn.planner.ir.graph import TIME, needed

PATHS = ("layer-to-layer", "recurrent", "readout")
PHASES = ("forward", "activation gradient", "weight gradient")


class Gemm(NamedTuple):
    """One row of the table: `count` contractions of `[M, K] @ [K, N]`.

    M is the size on the side of the weights (gates times features). N is the size on
    the side of the data (batch, or batch times steps where steps are batched). NVIDIA's
    tables use the same letters.

    Attributes:
      path: "layer-to-layer", "recurrent" or "readout".
      phase: "forward", "activation gradient" or "weight gradient".
      M: rows of the left operand.
      N: columns of the right operand.
      K: the contracted size.
      count: how often it runs in a sequence.
      where: "before", "loop", "after" or "recomputed".
    """

    path: str
    phase: str
    M: int
    N: int
    K: int
    count: int
    where: str

    @property
    def flops(self) -> int:
        """Floating-point operations of all `count` contractions together."""
        return 2 * self.M * self.N * self.K * self.count


def planned_gemms(plan, steps: int) -> tuple[Gemm, ...]:
    """Every contraction of a planned sequence, forward and backward."""
    deferred = plan.loop.regions.eqns if plan.defer else set()
    eqns, sizes = list(placed(plan.stages)), (steps, plan.chunk or steps)
    eqns += [(eqn, "recomputed") for eqn in _recomputed(plan)]
    return _gemms(plan.stages.graph, eqns, deferred, sizes)


def _recomputed(plan) -> list:
    """The equations that run again for the gradient, before the reverse loop."""
    if not plan.defer:
        return []
    recomputed, graph = plan.derivative.recomputed, plan.stages.graph
    hoisted = [v for v in plan.stages.hoisted if v in recomputed.xs]
    return [*needed(graph.eqns, hoisted, graph.weights), *recomputed.eqns]


def scan_gemms(plan, steps: int) -> tuple[Gemm, ...]:
    """Every contraction of a sequence if all of them run in the loop."""
    graph = plan.step
    eqns = [(e, "loop") for e in graph.eqns]
    return _gemms(graph, eqns, set(), (steps, steps))


def _gemms(graph, eqns, deferred, sizes) -> tuple[Gemm, ...]:
    bits, recurrent = graph.depends, set(needed(graph.eqns, graph.carry_out))
    rows = [
        row
        for eqn, where in eqns
        if ops.is_heavy(eqn)
        for row in _rows(eqn, where, bits, eqn in recurrent, deferred, sizes)
    ]
    counts: dict[Gemm, int] = {}
    for row in rows:
        one = row._replace(count=0)
        counts[one] = counts.get(one, 0) + row.count
    rows = [row._replace(count=n) for row, n in counts.items()]
    rows.sort(key=lambda r: (PHASES.index(r.phase), PATHS.index(r.path)))
    return tuple(rows)


def placed(stages) -> Iterator:
    """Each equation with the stage where it runs.

    Equations outside the loop that depend on weights alone are left out.
    """
    in_loop = set(stages.loop.eqns)
    before = set(needed(stages.graph.eqns, stages.hoisted))
    bits = stages.graph.depends
    for eqn in stages.graph.eqns:
        if eqn in in_loop:
            yield eqn, "loop"
        elif bits[eqn]:
            yield eqn, "before" if eqn in before else "after"


def _rows(eqn, where, bits, recurrent, deferred, sizes) -> Iterator[Gemm]:
    kinds = [0 if ops.is_literal(a) else bits[a] for a in eqn.invars]
    if not any(kinds):
        return
    path = PATHS[0] if max(kinds) == TIME else PATHS[1] if recurrent else PATHS[2]
    weight = 0 if kinds[0] == 0 else 1
    M, N, K = sizes_of(eqn, weight)
    T, at_once = sizes[0], max(1, sizes[1])
    chunks = -(-T // at_once)
    steps, batched = (T, 1) if where == "loop" else (chunks, at_once)
    yield Gemm(path, PHASES[0], M, N * batched, K, steps, where)
    if where == "recomputed":
        return
    # In reverse, what came before the loop comes after it.
    mirrored = {"before": "after", "loop": "loop", "after": "before"}[where]
    yield Gemm(path, PHASES[1], K, N * batched, M, steps, mirrored)
    if kinds[weight] == 0 or eqn in deferred:
        late = where != "loop" or eqn in deferred
        count, depth = (chunks, N * at_once) if late else (T, N)
        yield Gemm(path, PHASES[2], K, M, depth, count, "after" if late else "loop")
    else:
        yield Gemm(path, PHASES[2], K, M, N * batched, steps, where)
