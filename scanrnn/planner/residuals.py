"""Count the bytes that a program keeps for its reverse pass, by tracing it."""

from __future__ import annotations

import jax

from scanrnn.planner import ops
from scanrnn.planner.graph import of_some, variables


def residual_bytes(program, args) -> int | None:
    """The bytes that a program keeps for its reverse pass, besides inputs and outputs.

    They are counted by tracing `jax.vjp`; nothing runs. None if the program has no
    reverse mode.
    """
    moving = [i for i, a in enumerate(args) if ops.is_inexact_dtype(a.dtype)]

    def linear(*args):
        f = of_some(program, args, moving)
        outs, pull = jax.vjp(f, *(args[i] for i in moving))
        return jax.tree.leaves(outs), jax.tree.leaves(pull)

    try:
        closed, (outs, _) = jax.make_jaxpr(linear, return_shape=True)(*args)
    except (NotImplementedError, TypeError, ValueError):
        return None
    jaxpr = closed.jaxpr
    free = {*jaxpr.invars, *variables(jaxpr.outvars[: len(outs)])}
    kept = {v for v in variables(jaxpr.outvars[len(outs) :]) if v not in free}
    return ops.bytes_in(v for v in kept if ops.aval(v).shape)
