"""What moving equations out of a loop costs, in bytes."""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import variables


def excess(kept: Iterable[Var], *anyway: Iterable[Var]) -> int:
    """The marginal cost of moving equations out of a loop, in bytes per step.

    It is what all steps then keep, minus what each step reads and writes anyway, such
    as the matrix of a product. A move does not pay if this is positive.
    """
    return ops.bytes_in(kept) - sum(map(ops.bytes_in, anyway))


def grows(eqn: JaxprEqn) -> bool:
    """Whether an equation is a broadcast or iota that makes more bytes than it reads.

    A bias broadcast over the batch is free inside a fusion. Computed before the loop,
    it would be a `[B, H]` array to load at every step.
    """
    spreads = eqn.primitive.name in ("broadcast_in_dim", "iota")
    return spreads and excess(eqn.outvars, variables(eqn.invars)) > 0
