"""Ways to run a plan: one file each.

An executor is a module with `NAME` and

- `refuse(plan) -> str | None`: why it does not run this plan here;
- `seconds(plan) -> float`: its estimate of a training step;
- `run(plan, weights, init, xs)`: on flat lists of arrays. One that only replaces the
  loop gives `_program.run` its own `lower(graph, rows, constants, carry, known, ...)`,
  which runs a graph over all steps: the loop's own and that of its reverse step.

The cheapest that does not refuse is chosen.
"""

from __future__ import annotations

import dataclasses

from scanrnn.executors import planned, scan
from scanrnn.planner.plan import Candidate, Plan

EXECUTORS = {executor.NAME: executor for executor in (planned, scan)}


def assign(plan: Plan, implementation: str | None = None) -> Plan:
    """The plan with its executor: the one that is asked for, or the cheapest.

    Raises:
      ValueError: if the one that is asked for refuses.
    """
    found = []
    for name, executor in EXECUTORS.items():
        refusal = executor.refuse(plan)
        cost = None if refusal else executor.seconds(plan)
        found.append(Candidate(name, cost, refusal))
    able = [c for c in found if c.refusal is None]
    chosen = min(able, key=lambda c: c.seconds)
    if implementation is not None:
        (chosen,) = (c for c in found if c.name == implementation)
    if chosen.refusal is not None:
        raise ValueError(
            f"scan: implementation={implementation!r} cannot run this step: "
            f"{chosen.refusal} (leave it None, or say 'scan')"
        )
    programs = {name: executor.run for name, executor in EXECUTORS.items()}
    return dataclasses.replace(
        plan, executor=chosen.name, candidates=tuple(found), programs=programs
    )
