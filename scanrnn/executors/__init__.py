"""Executors: ways to run a plan, one file each.

A plan is made for each executor that does not refuse early, under its rules. The
cheapest plan that its executor does not refuse is kept. `Executor` says what one is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from scanrnn.executors import (
    associative,
    chunkwise,
    fission,
    pallas_gpu,
    pallas_tpu,
    planned,
    scan,
)
from scanrnn.executors._executor import Executor as Executor
from scanrnn.executors._executor import by_name as by_name
from scanrnn.executors._executor import has_kernels as has_kernels
from scanrnn.executors.run.program import Runner
from scanrnn.machines import Machine
from scanrnn.planner import costs
from scanrnn.planner.ir.batching import answers_kept
from scanrnn.planner.plan import Candidate, Plan
from scanrnn.planner.rules import Rules

EXECUTORS: dict[str, Any] = {
    each.NAME: each
    for each in (planned, scan, associative, chunkwise, fission, pallas_tpu, pallas_gpu)
}


def check_name(implementation: str | None) -> None:
    """Check the name of an executor.

    Args:
      implementation: the name, or None.

    Raises:
      ValueError: unless it is None or the name of an executor.

    Example:
      >>> from scanrnn.executors import check_name
      >>> check_name("planned")
    """
    if implementation is not None and implementation not in EXECUTORS:
        raise ValueError(
            f"scan: implementation must be None or one of {', '.join(EXECUTORS)}; "
            f"got {implementation!r}"
        )


@answers_kept()
def assign(
    make: Callable[[Rules], Plan], machine: Machine, implementation: str | None = None
) -> Plan:
    """Choose an executor: the one that is asked for, or the cheapest. Return its plan.

    Args:
      make: makes the plan under the rules of an executor.
      machine: the machine that the plan is for.
      implementation: the name of an executor, or None for the cheapest.

    Returns:
      The plan, with its executor and the estimates of all others.

    Raises:
      ValueError: if the executor that is asked for is unknown, or refuses the plan.

    Example:
      >>> import jax.numpy as jnp
      >>> from scanrnn.executors import assign
      >>> from scanrnn.machines import MACHINES
      >>> from scanrnn.planner import Options, make_plan, trace
      >>> a100, options = MACHINES["a100"], Options(implementation="scan")
      >>> traced = trace(lambda h, x: (h + x, h), jnp.ones(2), jnp.ones((5, 2)), None)
      >>> def make(rules):
      ...     return make_plan(traced, options, a100, rules)
      >>> assign(make, a100, "scan").executor.name
      'scan'
    """
    check_name(implementation)
    make = functools.cache(make)
    first = make(planned.rules(machine))
    plans, found = {}, {}
    for name, each in EXECUTORS.items():
        if by_name(each, machine) and name != implementation:
            continue
        early = getattr(each, "refuse_early", None)
        why = early(first) if early else None
        plans[name] = first if why else make(each.rules(machine))
        if not why and hasattr(each, "split"):
            plans[name] = each.split(plans[name], assign)
        found[name] = _candidate(Runner(each), plans[name], why)
    able = [c for c in found.values() if c.refusal is None]
    if plans[scan.NAME].options.residuals is not None and len(able) > 1:
        # `lax.scan` ignores a residual policy, so one that is asked for needs a plan.
        able = [c for c in able if c.name != scan.NAME]
    chosen = min(able, key=lambda c: c.seconds)
    if implementation is not None:
        chosen = found[implementation]
    if chosen.refusal is not None:
        raise ValueError(
            f"scan: implementation={implementation!r} cannot run this step: "
            f"{chosen.refusal} (leave it None, or take 'scan')"
        )
    return dataclasses.replace(
        plans[chosen.name],
        refusal=found[planned.NAME].refusal,
        executor=chosen.executor,
        candidates=tuple(found.values()),
    )


def _candidate(runner, plan, refusal: str | None) -> Candidate:
    refusal = refusal or runner.executor.refuse(plan)
    if refusal is not None:
        return Candidate(runner, None, refusal)
    if plan.parts:
        parts = (part.cost for _, part in plan.parts)
        return Candidate(runner, costs.summed(parts, plan.rules.costs.fission), None)
    work = getattr(runner.executor, "work", None)
    loops = work(plan) if work else None
    return Candidate(runner, costs.cost(plan, runner.name == scan.NAME, loops), None)
