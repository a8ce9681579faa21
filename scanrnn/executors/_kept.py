"""How what the forward loop kept lies in arrays, and how to read it.

Gates that one split made lie in one array. The carry before a step is the carry after
the one before it: where one of them is kept, the other is read from the same array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Var

from scanrnn.executors._inplace import piece
from scanrnn.planner.packing import Pack


class Shift(NamedTuple):
    """Values that are those of another variable, one step later or earlier."""

    of: Var
    later: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """Where to find the values of each variable.

    Attributes:
      length: the number of steps.
      packs: gates that lie in one array.
      shifts: variables whose values are those of another one, but for the first or
        last step: that value, the edge, is kept by itself.
    """

    length: Any
    packs: tuple[Pack, ...] = ()
    shifts: Mapping[Var, Shift] = dataclasses.field(default_factory=dict)

    def arrays(self, names: Iterable[Var]) -> set[Var]:
        """What has to be at hand to read the values of some variables."""
        inside = {v: pack.whole for pack in self.packs for v in pack.members}
        ends = [self._chain(v)[-1] for v in names]
        return {inside.get(v, v) for v in ends}

    def of(self, names: Collection[Var], arrays: Mapping, edges: Mapping):
        """Those of the arrays and edges that some variables are read from."""
        needed, ends = self.arrays(names), {v for n in names for v in self._chain(n)}
        return (
            {v: a for v, a in arrays.items() if v in needed},
            {v: e for v, e in edges.items() if v in ends},
        )

    def whole(self, arrays: Mapping, edges: Mapping) -> dict[Var, Any]:
        """All values of all variables that can be read, each as an array."""
        found = dict(arrays)
        for pack in self.packs:
            if pack.whole in found:
                parts = lax.split(found.pop(pack.whole), pack.sizes, pack.axis + 1)
                found |= dict(zip(pack.members, parts, strict=True))
        return found | {v: self.shifted(v, arrays, edges) for v in edges}

    def shifted(self, v: Var, arrays: Mapping, edges: Mapping):
        """All values of a variable that is a shift of another one."""
        if v not in self.shifts:
            return arrays[v]
        of, later = self.shifts[v]
        values, edge = self.shifted(of, arrays, edges), jnp.expand_dims(edges[v], 0)
        parts = [edge, values[:-1]] if later else [values[1:], edge]
        return lax.concatenate(parts, 0)

    def rows(self, arrays: Mapping, edges: Mapping, t) -> dict[Var, Any]:
        """The values at step `t` of all variables that can be read."""
        packs = [pack for pack in self.packs if pack.whole in arrays]
        wholes = {pack.whole for pack in packs}
        found = {v: piece(arrays, t, v) for v in arrays if v not in wholes}
        for pack in packs:
            for v, start, size in pack.spans():
                found[v] = piece(arrays, t, pack.whole, pack.axis, start, size)
        return found | {v: self._shifted_row(v, arrays, edges, t) for v in edges}

    def _shifted_row(self, v, arrays, edges, t):
        if v not in self.shifts:
            return piece(arrays, t, v)
        of, later = self.shifts[v]
        at, edge = (t - 1, 0) if later else (t + 1, self.length - 1)
        at = jnp.clip(at, 0, self.length - 1)
        return lax.select(t == edge, edges[v], self._shifted_row(of, arrays, edges, at))

    def _chain(self, v) -> list[Var]:
        """A variable, what it is a shift of, and so on."""
        found = [v]
        while found[-1] in self.shifts:
            found.append(self.shifts[found[-1]].of)
        return found
