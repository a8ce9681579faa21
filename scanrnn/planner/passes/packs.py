"""Stack several values of a step together, as one array.

The gates from one split then need one write instead of four. So do the means and
deviations of norms: to write one number for each row takes as long as to write a whole
row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import Graph, struct, variables, variables_like
from scanrnn.planner.ir.rows import Place, spans


def find_packs(loop: Graph, saved: Iterable[Var]) -> list[JaxprEqn]:
    """Equations that join the parts of a split, if each (or its activation) is saved.

    The joined array has the layout of the array that was split. So it has the shape of
    that array's cotangent, and of its hoisted part. These can reuse one buffer.
    """
    consumers, free = loop.consumers, set(saved) - set(variables(loop.outs))
    packs = []
    for eqn in loop.eqns:
        if eqn.primitive.name == "split":
            members = [_kept(v, consumers, free) for v in eqn.outvars]
            if None not in members and len(members) > 1:
                packs.append(_pack(eqn, members, eqn.params["axis"]))
    return packs


def pack_numbers(loop: Graph, saved: Iterable[Var]) -> list[JaxprEqn]:
    """Equations that join saved values with one number for each row, by type."""
    groups: dict[Any, list[Var]] = {}
    for v in saved:
        shape, outs = ops.aval(v).shape, variables(loop.outs)
        if shape and shape[-1] == 1 and v not in outs:
            groups.setdefault((shape, ops.aval(v).dtype), []).append(v)
    made = loop.producers
    return [
        _pack(made[group[0]], group, len(shape) - 1)
        for (shape, _), group in groups.items()
        if len(group) > 1
    ]


def _kept(part, consumers, free) -> Var | None:
    """The saved variable of a part of a split: the part or its activation, or None."""
    if isinstance(part, DropVar):
        return None
    if part in free:
        return part
    users = consumers.get(part, [])
    after = users[0].outvars[0] if len(users) == 1 and users[0] is not None else None
    return after if after in free and ops.alike(part, after) else None


def places(pack: JaxprEqn) -> Iterable[tuple[Any, Place]]:
    """Each value that a pack joins, with its place in the whole."""
    axis, (whole,) = pack.params["dimension"], pack.outvars
    sizes = [ops.aval(v).shape[axis] for v in pack.invars]
    for v, span in zip(pack.invars, spans(sizes), strict=True):
        yield v, Place(whole, axis, *span)


def _pack(eqn, members, axis) -> JaxprEqn:
    """An equation that joins values along an axis, in the context of `eqn`."""
    shape = list(ops.aval(members[0]).shape)
    shape[axis] = sum(ops.aval(v).shape[axis] for v in members)
    whole = variables_like([struct(members[0]).update(shape=tuple(shape))])
    return compat.joining(eqn, members, whole, axis)
