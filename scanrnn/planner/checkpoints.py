"""What a `jax.checkpoint` in a step asks for.

All of a step under one asks for a loop in chunks, of which the first carries are kept.
A part under one is recomputed: a plan recomputes what is pointwise anyhow, but keeps
what contractions make, so a part with contractions in it is left to JAX. So is one
whose policy is its author's own: what JAX's policies save of contractions, a plan does.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
from jax.extend.core import JaxprEqn

from scanrnn.planner import compat, ops
from scanrnn.planner.graph import Graph, inside

_POLICIES = jax.checkpoint_policies
_RECOMPUTES = (None, _POLICIES.nothing_saveable)
_SAVES = (
    _POLICIES.everything_saveable,
    _POLICIES.dots_saveable,
    _POLICIES.dots_with_no_batch_dims_saveable,
    # A planned scan within the step has these.
    ops.keep_inputs,
    ops.keep_products,
)


def is_checkpointed(graph: Graph) -> bool:
    """Whether the author put the step as a whole under `jax.checkpoint`.

    That is, all of its contractions; all of its equations if there are none.
    """
    found = [pair for eqn in graph.eqns for pair in _opened(eqn, under=False)]
    heavy = [(eqn, under) for eqn, under in found if _is_heavy(eqn)]
    return bool(found) and all(under for _, under in heavy or found)


def opens(eqn: JaxprEqn, whole: bool) -> bool:
    """Whether the planner may look into a `jax.checkpoint`.

    Args:
      eqn: the checkpoint.
      whole: whether the whole step is under one.
    """
    policy = eqn.params["policy"]
    if policy in _SAVES:
        return True
    light = not any(map(ops.is_heavy, inside(eqn)))
    return policy in _RECOMPUTES and (whole or light)


def _opened(eqn, under) -> Iterator[tuple[JaxprEqn, bool]]:
    """What is in calls and checkpoints, and whether it is to be recomputed."""
    recomputes = compat.is_checkpoint(eqn) and eqn.params["policy"] in _RECOMPUTES
    saves = compat.is_checkpoint(eqn) and eqn.params["policy"] in _SAVES
    if not (compat.is_call(eqn) or recomputes or saves):
        yield eqn, under
        return
    jaxpr, _ = compat.opened(compat.program(eqn))
    for inner in jaxpr.eqns:
        yield from _opened(inner, under or recomputes)


def _is_heavy(eqn) -> bool:
    return any(map(ops.is_heavy, (eqn, *inside(eqn))))
