"""Gates that are kept for the reverse loop: as one array where one split made them.

The array is laid out as what the split took apart, so it has the shape of its
cotangent, and of what was hoisted into it: each can be written over the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
from jax import lax
from jax.extend.core import DropVar, JaxprEqn, Var

from scanrnn.planner import ops
from scanrnn.planner.graph import Graph, struct, variables


class Pack(NamedTuple):
    """Variables of one step, and the equation that makes one array of them."""

    members: tuple[Var, ...]
    eqn: JaxprEqn

    @property
    def whole(self) -> Var:
        """The array of all members."""
        return self.eqn.outvars[0]

    @property
    def axis(self) -> int:
        """The axis, in one step, along which members lie one after the other."""
        return self.eqn.params["dimension"]

    @property
    def sizes(self) -> list[int]:
        """The members' sizes along that axis."""
        return [ops.aval(v).shape[self.axis] for v in self.members]

    def spans(self) -> Iterable[tuple[Var, int, int]]:
        """Each member with its start and size."""
        starts = itertools.accumulate(self.sizes, initial=0)
        return zip(self.members, starts, self.sizes, strict=False)


def find_packs(loop: Graph, saved: Sequence[Var]) -> list[Pack]:
    """The splits of which every part is saved, as it is or activated."""
    consumers, free = loop.consumers(), set(saved) - set(variables(loop.outs))
    packs = []
    for eqn in loop.eqns:
        if eqn.primitive.name == "split":
            members = [_kept(v, consumers, free) for v in eqn.outvars]
            if None not in members and len(members) > 1:
                packs.append(_pack(tuple(members), eqn.params["axis"]))
    return packs


def _kept(part, consumers, free) -> Var | None:
    """What is saved of a part of a split."""
    if isinstance(part, DropVar):
        return None
    if part in free:
        return part
    users = consumers.get(part, [])
    after = users[0].outvars[0] if len(users) == 1 and users[0] is not None else None
    return after if after in free and _alike(part, after) else None


def _alike(a, b) -> bool:
    a, b = ops.aval(a), ops.aval(b)
    return a.shape == b.shape and a.dtype == b.dtype


def _pack(members, axis) -> Pack:
    closed = jax.make_jaxpr(lambda *parts: lax.concatenate(parts, axis))(
        *map(struct, members)
    )
    (eqn,) = closed.jaxpr.eqns
    return Pack(members, eqn.replace(invars=list(members)))
