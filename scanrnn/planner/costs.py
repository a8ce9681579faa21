"""What running a plan takes on a machine: a rough estimate, to compare executors."""

from __future__ import annotations

from scanrnn.machines import Machine
from scanrnn.planner import counts, ops

# A symbolic number of steps is taken to be this many.
_STEPS = 64


def planned_seconds(plan, machine: Machine) -> float:
    """A training step with the work outside the loop done for all steps at once."""
    return _seconds(counts.planned_gemms(plan, _steps(plan)), plan, machine)


def scan_seconds(plan, machine: Machine) -> float:
    """A training step with all work in the loop, as `lax.scan` runs it."""
    return _seconds(counts.scan_gemms(plan, _steps(plan)), plan, machine)


def work(plan) -> int | None:
    """Operations of one step, or None if there are loops of unknown length in it."""
    graph = plan.stages.graph
    if any(map(ops.has_subjaxpr, graph.eqns)):
        return None
    bits = graph.depends()
    return sum(ops.work_of(e) for e in graph.eqns if bits[e])


def _steps(plan) -> int:
    return plan.length if isinstance(plan.length, int) else _STEPS


def _seconds(gemms, plan, machine) -> float:
    heavy = [e for e in plan.source.eqns if ops.is_heavy(e)]
    dtype = str(ops.aval(heavy[0].invars[0]).dtype) if heavy else "float32"
    # Besides products: one kernel per step, forward and in reverse.
    total = 2 * _steps(plan) * machine.launch
    for row in gemms:
        moved = 4 * (row.M * row.K + row.K * row.N + row.M * row.N)
        once = machine.seconds(2 * row.M * row.N * row.K, moved, dtype)
        total += row.count * (machine.launch + once)
    return total
