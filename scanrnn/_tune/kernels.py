"""Kernels as candidates of the tuner: timed only if their results are right."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from scanrnn.executors import EXECUTORS
from scanrnn.planner import Options, Plan

# The largest relative error against XLA's loops, in the 2-norm of an output. ROUNDED is
# for half precision, and for a TPU, whose products round float32 to bfloat16.
EXACT, ROUNDED = 1e-3, 4e-2


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
    """Leave out kernels whose results differ from those of the first candidate.

    Args:
      candidates: each with a `label`, and a `run` that returns the results to compare.
      labels: the labels of the kernels among them.

    Returns:
      The candidates that are left.

    Warns:
      UserWarning: for each kernel that differs.
    """
    if not any(candidate.label in labels for candidate in candidates):
        return candidates
    wanted, kept = jax.tree.leaves(candidates[0].run()), []
    for candidate in candidates:
        error = 0.0
        if candidate.label in labels:
            error = max(map(excess, jax.tree.leaves(candidate.run()), wanted))
        if error <= 1:
            kept.append(candidate)
        else:
            warnings.warn(
                f"plan: {candidate.label} is {error:.3g} times as far from XLA's loops "
                "as may be on this device, and is left out; please report the step and "
                "what scanrnn.selfcheck() prints",
                stacklevel=2,
            )
    return kept


def excess(got, wanted) -> float:
    """The relative error of an array in its 2-norm, divided by the largest allowed.

    Infinite if the error is NaN, or if arrays that are not floats differ at all.
    """
    if not jnp.issubdtype(wanted.dtype, jnp.inexact):
        return 0.0 if bool(jnp.all(got == wanted)) else float("inf")
    half = jnp.finfo(wanted.dtype).bits < 32
    (device,) = list(wanted.devices())[:1]
    most = ROUNDED if half or device.platform == "tpu" else EXACT
    wide = jnp.promote_types(wanted.dtype, jnp.float32)
    error, size = (
        jnp.linalg.norm(jnp.ravel(a).astype(wide)) for a in (got - wanted, wanted)
    )
    found = float(error / (most * (size + jnp.finfo(wide).tiny)))
    return found if found == found else float("inf")
