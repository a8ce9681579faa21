"""What weights and time inputs contribute to the tangents of a loop."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Var

from scanrnn.executors._batch import over_time
from scanrnn.executors._recurrence import named, values


def contributions(loop, constants, streams, d_weights, d_xs) -> dict[Var, Any]:
    """`E` for all steps at once, by the cut at which it enters."""
    rules, at = loop.derivative, []
    if not rules.cuts or not (d_weights or d_xs):
        return {}

    def step(streams_t, d_xs_t, constants_, d_weights_):
        primals = named(constants, constants_) | named(streams, streams_t)
        tangents = named(d_weights, d_weights_) | named(d_xs, d_xs_t)
        found = rules.outside(primals, tangents)
        at[:] = found
        return list(found.values())

    batched = over_time(step, (0, 0, None, None), loop.length)
    found = loop.rematerialised(batched)(
        *map(values, (streams, d_xs, constants, d_weights))
    )
    return named(at, found)
