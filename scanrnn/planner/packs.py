"""Values of a step that are stacked together, as one array.

Gates that one split made are one write in place of four. So are numbers of rows, the
means and deviations of norms, where a row of one number takes as long as any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.planner import ops
from scanrnn.planner.graph import Graph, struct, variables
from scanrnn.planner.rows import Place, spans


class Pack(NamedTuple):
    """Gates that one split made, and the equation that makes one array of them.

    The array is laid out as what the split took apart, so it has the shape of its
    cotangent, and of what was hoisted into it: each can be written over the other.
    """

    members: tuple[Var, ...]
    eqn: JaxprEqn

    @property
    def whole(self) -> Var:
        """The array of all members."""
        return self.eqn.outvars[0]

    def places(self) -> Iterable[tuple[Var, Place]]:
        """Each member with its place."""
        axis = self.eqn.params["dimension"]
        sizes = [ops.aval(v).shape[axis] for v in self.members]
        for v, span in zip(self.members, spans(sizes), strict=True):
            yield v, Place(self.whole, axis, *span)


def find_packs(loop: Graph, saved: Iterable[Var]) -> list[Pack]:
    """The splits of which every part is saved, as it is or activated."""
    consumers, free = loop.consumers(), set(saved) - set(variables(loop.outs))
    packs = []
    for eqn in loop.eqns:
        if eqn.primitive.name == "split":
            members = [_kept(v, consumers, free) for v in eqn.outvars]
            if None not in members and len(members) > 1:
                packs.append(_pack(tuple(members), eqn.params["axis"]))
    return packs


def pack_numbers(loop: Graph, saved: Iterable[Var]) -> list[Pack]:
    """What is saved of one number for each row, those of a type together."""
    groups: dict[Any, list[Var]] = {}
    for v in saved:
        shape, outs = ops.aval(v).shape, variables(loop.outs)
        if shape and shape[-1] == 1 and v not in outs:
            groups.setdefault((shape, ops.aval(v).dtype), []).append(v)
    return [_pack(tuple(g), len(s) - 1) for (s, _), g in groups.items() if len(g) > 1]


def _kept(part, consumers, free) -> Var | None:
    """What is saved of a part of a split."""
    if isinstance(part, DropVar):
        return None
    if part in free:
        return part
    users = consumers.get(part, [])
    after = users[0].outvars[0] if len(users) == 1 and users[0] is not None else None
    return after if after in free and ops.alike(part, after) else None


def _pack(members, axis) -> Pack:
    closed = jax.make_jaxpr(lambda *parts: lax.concatenate(parts, axis))(
        *map(struct, members)
    )
    (eqn,) = closed.jaxpr.eqns
    return Pack(members, eqn.replace(invars=list(members)))
