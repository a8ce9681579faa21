"""What the forward loop stacks for its tangent, each value once."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Var

from scanrnn.executors._kept import Kept, Shift
from scanrnn.executors._recurrence import Loop
from scanrnn.planner import ops
from scanrnn.planner.packing import find_packs


class Residuals:
    """Names and places of what a loop stacks beyond its ys.

    Attributes:
      loop: the loop that stacks all this.
      kept: how it lies in arrays.
    """

    def __init__(self, loop: Loop):
        """Choose what to stack beyond the ys of `loop`."""
        graph, rules = loop.graph, loop.derivative
        packs = find_packs(graph, rules.saved) if loop.in_place else []
        packed = {v for pack in packs for v in pack.members}
        saved = [v for v in rules.saved if v not in packed]
        before = [graph.carry[i] for i in rules.carry_saved]
        shifts, self._edges = _shifts(loop, saved, before)
        direct = [v for v in dict.fromkeys([*saved, *before]) if v not in shifts]
        self._direct = [*(pack.whole for pack in packs), *direct]
        more = [v for v in self._direct if v not in graph.ys]
        self.loop = loop.stacking(more, [pack.eqn for pack in packs])
        self._at = {v: i for i, v in reversed([*enumerate(self.loop.graph.ys)])}
        self.kept = Kept(loop.length, tuple(packs), shifts)

    def streams(self, carry, final, stacked) -> tuple[dict[Var, Any], dict[Var, Any]]:
        """Arrays of all steps by variable, and the edges of those that are shifts."""
        sources = [s.of for s in self.kept.shifts.values() if s.of in self._at]
        arrays = {v: stacked[self._at[v]] for v in (*self._direct, *sources)}
        ends = {True: carry, False: final}
        return arrays, {v: ends[first][i] for v, (i, first) in self._edges.items()}


def _shifts(loop, saved, before) -> tuple[dict[Var, Shift], dict[Var, tuple]]:
    """What need not be stacked, as it is a shift of something that is.

    And its edges, each as a place in the carry: at the start if True, else the end.
    """
    graph = loop.graph
    pairs = list(enumerate(zip(graph.carry, graph.carry_out, strict=True)))
    pairs = [(i, (old, new)) for i, (old, new) in pairs if not ops.is_literal(new)]
    shifts, edges = {}, {}
    for i, (old, new) in pairs:
        if new in saved and old in graph.ys and new not in graph.ys:
            shifts[new], edges[new] = Shift(old, loop.reverse), (i, False)
    stacked = {*graph.ys, *saved, *before} - shifts.keys()
    for i, (old, new) in pairs:
        wanted = old in before and old not in graph.ys
        if wanted and new in stacked and not _leads(shifts, new, old):
            shifts[old], edges[old] = Shift(new, not loop.reverse), (i, True)
    return shifts, edges


def _leads(shifts, v, to) -> bool:
    """Whether a variable is, through others, a shift of a given one."""
    while v in shifts and v is not to:
        v = shifts[v].of
    return v is to
