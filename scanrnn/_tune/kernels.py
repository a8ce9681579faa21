"""Kernels as candidates of the tuner: timed only if their results are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from scanrnn._tune.errors import error, largest
from scanrnn._warn import warn
from scanrnn.executors import EXECUTORS
from scanrnn.planner import Options, Plan


def kernels(plan: Plan, make: Callable[[Options], Plan]) -> dict[str, Options]:
    """Options for each executor with kernels that can run the plan here, by label."""
    found = {}
    for name, executor in EXECUTORS.items():
        if getattr(executor, "PLATFORM", None) != plan.machine.platform:
            continue
        options = dataclasses.replace(plan.options, implementation=name)
        try:
            make(options)
        except ValueError:
            continue
        found[f"implementation={name!r}"] = options
    return found


def without_wrong(candidates: list, labels: Mapping[str, Options]) -> list:
    """Leave out kernels whose results differ from those of the first other candidate.

    Args:
      candidates: each with a `label`, and a `run` that returns the results to compare.
      labels: the labels of the kernels among them.

    Returns:
      The candidates that are left.

    Warns:
      UserWarning: for each kernel that differs.
    """
    others = [candidate for candidate in candidates if candidate.label not in labels]
    if not others or len(others) == len(candidates):
        return candidates
    wanted, kept = others[0].run(), []
    most = largest(wanted)
    for candidate in candidates:
        found = 0.0
        if candidate.label in labels:
            found = error(candidate.run(), wanted)
        if found <= most:
            kept.append(candidate)
        else:
            warn(
                f"plan: {candidate.label} is {found / most:.3g} times as far from "
                "XLA's loops as may be on this device, and is left out; please report "
                "the step and what scanrnn.selfcheck() prints",
            )
    return kept
