"""Kernels among the plans that are tried: measured only where they are right."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from scanrnn.executors import EXECUTORS
from scanrnn.planner import Options, Plan

# The largest error beside XLA's loops, in the norm of an output. Products of a TPU
# round float32 to bfloat16.
EXACT, ROUNDED = 1e-3, 4e-2


def kernels(plan: Plan, make: Callable[[Options], Plan]) -> dict[str, Options]:
    """Options that ask for a kernel of the plan's platform, by label, if it can run."""
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
    """The candidates without the kernels that differ from the first of all.

    Args:
      candidates: with a `label`, and a `run` that gives what is compared.
      labels: those of kernels.

    Warns:
      UserWarning: for each that differs.
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
    """The error of an array, in the norm, over the largest that it may have."""
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
