"""What the forward loop stacks for its tangent, each value once."""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.extend.core import Var

from scanrnn.executors._recurrence import Loop
from scanrnn.planner.packing import find_packs


class Residuals:
    """Names and places of what a loop stacks beyond its ys.

    The carry before a step is the carry after the previous one: when one of the
    two is stacked anyway, the other is that array shifted by one step. Gates that
    one split made are one array.

    Attributes:
      loop: the loop that stacks all this.
      packs: the gates that lie in one array.
    """

    def __init__(self, loop: Loop):
        """Choose what to stack beyond the ys of `loop`."""
        self._reverse = loop.reverse
        graph, rules = loop.graph, loop.derivative
        self.packs = find_packs(graph, rules.saved) if loop.in_place else []
        packed = {v for pack in self.packs for v in pack.members}
        pairs = list(zip(graph.carry, graph.carry_out, strict=True))
        saved = [v for v in rules.saved if v not in packed]
        wanted = [*saved, *(graph.carry[i] for i in rules.carry_saved)]
        # Those after each step from those before it, where the ys have the latter.
        self._after = {
            after: (i, before)
            for i, (before, after) in enumerate(pairs)
            if after in saved and before in graph.ys and after not in graph.ys
        }
        kept = [v for v in wanted if v not in self._after]
        self._before = {
            before: (i, after)
            for i, (before, after) in enumerate(pairs)
            if before in kept and before not in graph.ys
            if after in (*graph.ys, *kept)
        }
        direct = [v for v in dict.fromkeys(kept) if v not in self._before]
        self._direct = [*(pack.whole for pack in self.packs), *direct]
        more = [v for v in self._direct if v not in graph.ys]
        self.loop = loop.stacking(more, [pack.eqn for pack in self.packs])
        self._at = {v: i for i, v in reversed([*enumerate(self.loop.graph.ys)])}

    def streams(self, carry, final, stacked) -> dict[Var, Any]:
        """Stacked values by variable; carries are those before each step."""
        found = {v: stacked[self._at[v]] for v in self._direct}
        for v, (i, after) in self._before.items():
            found[v] = _shift(carry[i], stacked[self._at[after]], not self._reverse)
        for v, (i, before) in self._after.items():
            found[v] = _shift(final[i], stacked[self._at[before]], self._reverse)
        return found


def _shift(edge, values, later):
    """Values one step later with `edge` first, or one step earlier with it last."""
    edge = lax.expand_dims(edge, (0,))
    parts = [edge, values[:-1]] if later else [values[1:], edge]
    return lax.concatenate(parts, 0)
