"""List every contraction of a plan, with its sizes and how often it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from jax.extend.core import jaxprs_in_params

from scanrnn.planner.ir import ops
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


def multiplications(eqn) -> int:
    """The multiplications of a contraction, or of all of them in a program."""
    if ops.is_heavy(eqn) or eqn.primitive.name == ops.PRODUCT:
        return math.prod(sizes_of(eqn))
    eqns = (e for jaxpr in jaxprs_in_params(eqn.params) for e in jaxpr.eqns)
    trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return ops.product([trips]) * sum(map(multiplications, eqns))


def sizes_of(eqn, weight: int = 0) -> tuple[int, int, int]:
    """M (weight side), N (data side) and K of one step's contraction."""
    if eqn.primitive.name == ops.CONVOLUTION:
        out, kernel = eqn.outvars[0].aval, eqn.invars[1].aval
        spec = eqn.params["dimension_numbers"]
        M = kernel.shape[spec.rhs_spec[0]]
        return M, ops.size_of(out) // M, ops.size_of(kernel) // M
    contract, batch = eqn.params["dimension_numbers"]

    def free(i):
        used = {*contract[i], *batch[i]}
        shape = eqn.invars[i].aval.shape
        return ops.product(d for j, d in enumerate(shape) if j not in used)

    shape = eqn.invars[0].aval.shape
    K = ops.product(shape[j] for j in contract[0])
    many = ops.product(shape[j] for j in batch[0])
    return free(weight), free(1 - weight) * many, K
