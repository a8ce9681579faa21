"""What the forward loop could stack for the reverse one."""

from __future__ import annotations

from jax.extend.core import DropVar, Var

from scanrnn.planner import ops
from scanrnn.planner.graph import CARRY

# What is so many times smaller than what is saved anyway is saved, too.
_SMALL = 16


def candidates(draft, regions, policy) -> list[Var]:
    """Variables of the loop, by the policy for residuals."""
    loop = draft.loop
    if policy == "recompute":
        return []
    if policy == "everything":
        made = [v for e in loop.eqns for v in e.outvars if draft.bits[v] & CARRY]
        drop = draft.internal
        return [v for v in made if not isinstance(v, DropVar) and v not in drop]
    consumers = loop.consumers()
    found = [o for v in regions.heavy_cuts for o in _activated(v, consumers)]
    return list(dict.fromkeys([*found, *_statistics(draft, found)]))


def _statistics(draft, saved) -> list[Var]:
    """One number per row, as a layer norm makes: a pass to compute, nothing to keep."""
    most = max((ops.bytes_of(v) for v in saved), default=0) // _SMALL
    made = [v for e in draft.loop.eqns for v in e.outvars if draft.bits[v] & CARRY]
    return [v for v in made if ops.is_inexact(v) and ops.bytes_of(v) <= most]


def _activated(v, consumers) -> list[Var]:
    """Save `tanh(z)` instead of `z` where only the activation reads `z`.

    Same bytes, and the reverse loop need not evaluate it again.
    """
    users = consumers.get(v, [])
    if len(users) != 1 or users[0] is None:
        return [v]
    (eqn,) = users
    if eqn.primitive.name in ops.FROM_OUTPUT:
        return [eqn.outvars[0]]
    if eqn.primitive.name == "split":
        parts = [o for o in eqn.outvars if not isinstance(o, DropVar)]
        after = [_activated(o, consumers) for o in parts]
        if any(a != [o] for a, o in zip(after, parts, strict=True)):
            return [o for a in after for o in a]
    return [v]
