"""What the tuner refuses before it measures anything."""

from __future__ import annotations

from typing import Any

import jax

from scanrnn.planner import Traced


def check(traced: Traced, tune: Any) -> None:
    """Raise ValueError unless a step can be tuned, in this process and in this way."""
    if tune is not True and tune not in ("train", "forward"):
        raise ValueError(
            f'plan: tune must be False, True, "train" or "forward"; got {tune!r}'
        )
    if jax.process_count() > 1:
        raise ValueError(
            f"plan: tune is for one process, and here are {jax.process_count()}: each "
            "could choose another plan, and then they would wait for one another "
            "(tune in one process, and pass the options of that plan here)"
        )
    groups = traced.weights, traced.init, traced.xs
    shapes = [jax.typeof(v).shape for group in groups for v in group]
    sizes = [traced.length, *(d for shape in shapes for d in shape)]
    symbolic = [str(d) for d in sizes if not isinstance(d, int)]
    if symbolic:
        raise ValueError(
            f"plan: tune needs sizes that are numbers to run the step; {symbolic[0]} "
            "is symbolic (plan without tune, or tune for typical sizes and pass "
            "plan.options)"
        )
