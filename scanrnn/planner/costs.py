"""What running a plan takes on a machine: a rough estimate, to compare executors."""

from __future__ import annotations

import math
from collections.abc import Callable

from scanrnn.planner import counts, ops

# A symbolic number of steps is taken to be this many.
_STEPS = 64


def work(plan) -> int | None:
    """Operations of one step, or None if there are loops of unknown length in it."""
    graph = plan.stages.graph
    if any(map(ops.has_subjaxpr, graph.eqns)):
        return None
    bits = graph.depends()
    return sum(map(_work_of, (e for e in graph.eqns if bits[e])))


def _work_of(eqn) -> int:
    """Multiplications of a contraction; numbers made by anything else."""
    if ops.is_heavy(eqn):
        return math.prod(counts.sizes_of(eqn))
    return sum(ops.size_of(ops.aval(v)) for v in eqn.outvars)


def seconds(plan, gemms: Callable) -> float:
    """A training step whose contractions are `gemms(plan, steps)`."""
    steps = plan.length if isinstance(plan.length, int) else _STEPS
    machine = plan.machine
    heavy = [e for e in plan.source.eqns if ops.is_heavy(e)]
    dtype = str(ops.aval(heavy[0].invars[0]).dtype) if heavy else "float32"
    # Besides products: one kernel per step, forward and in reverse.
    total = 2 * steps * machine.launch
    for row in gemms(plan, steps):
        moved = 4 * (row.M * row.K + row.K * row.N + row.M * row.N)
        once = machine.seconds(2 * row.M * row.N * row.K, moved, dtype)
        total += row.count * (machine.launch + once)
    return total
