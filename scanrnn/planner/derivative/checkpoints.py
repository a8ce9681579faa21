"""What a `jax.checkpoint` in a step asks for.

If the whole step is under one, the loop runs in chunks and keeps the carry at the start
of each chunk. If a part of the step is under one, that part must be recomputed. A plan
recomputes pointwise work anyway, but keeps the results of contractions. So a part that
contains contractions is left to JAX. A checkpoint with a policy of its author's own is
left to JAX too. JAX's policies that save contractions agree with what a plan saves.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import Graph, inside
from scanrnn.planner.motion.over_time import keep_inputs, keep_products

_POLICIES = jax.checkpoint_policies
_RECOMPUTES = (None, _POLICIES.nothing_saveable)
_SAVES = (
    _POLICIES.everything_saveable,
    _POLICIES.dots_saveable,
    _POLICIES.dots_with_no_batch_dims_saveable,
    # A planned scan inside the step uses these two.
    keep_inputs,
    keep_products,
)


def is_checkpointed(graph: Graph) -> bool:
    """Whether the author put the step as a whole under `jax.checkpoint`.

    All contractions of the step must be under one, or all equations if there is no
    contraction.
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
    """The equations inside calls and checkpoints, each with whether to recompute it."""
    recomputes = compat.is_checkpoint(eqn) and eqn.params["policy"] in _RECOMPUTES
    saves = compat.is_checkpoint(eqn) and eqn.params["policy"] in _SAVES
    if not (compat.is_group(eqn) or recomputes or saves):
        yield eqn, under
        return
    jaxpr, _ = compat.opened(compat.program(eqn))
    for inner in jaxpr.eqns:
        yield from _opened(inner, under or recomputes)


def _is_heavy(eqn) -> bool:
    return any(map(ops.is_heavy, (eqn, *inside(eqn))))
