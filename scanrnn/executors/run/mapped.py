"""Which outputs of a program depend on inputs that `jax.vmap` maps."""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import compat, ops


def mapped_outs(jaxpr, mapped: Sequence[bool]) -> list[bool]:
    """Whether each output of a jaxpr depends on a mapped input.

    Args:
      jaxpr: an open or a closed jaxpr.
      mapped: whether each input is mapped.
    """
    jaxpr, _ = compat.opened(jaxpr)
    known = dict(zip(jaxpr.invars, mapped, strict=True))

    def is_mapped(atom) -> bool:
        return not ops.is_literal(atom) and known.get(atom, False)

    for eqn in jaxpr.eqns:
        outs = _outs(eqn, list(map(is_mapped, eqn.invars)))
        known |= zip(eqn.outvars, outs, strict=True)
    return list(map(is_mapped, jaxpr.outvars))


def _outs(eqn: JaxprEqn, ins: list[bool]) -> list[bool]:
    inner = compat.program(eqn)
    calls = compat.is_group(eqn) or eqn.primitive.name == ops.RULED
    if calls and inner is not None:
        return mapped_outs(inner, ins)
    if eqn.primitive.name != "scan":
        return [any(ins)] * len(eqn.outvars)
    consts, carries = compat.scan_arity(eqn)
    until = consts + carries
    while True:
        outs = mapped_outs(inner, ins)
        joined = [a or b for a, b in zip(ins[consts:until], outs, strict=False)]
        if joined == ins[consts:until]:
            return outs
        ins = [*ins[:consts], *joined, *ins[until:]]
