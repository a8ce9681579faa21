"""Find rows that a step spreads along two axes of one value.

A covariance is `x[:, :, None] * x[:, None, :]`. XLA slices the row x from the sequence
in the same loop that computes this value. A CPU then takes a slice for each element,
with two indices, and computes no vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.axes import kept_axes, of_reshape
from scanrnn.planner.ir.graph import Graph

# Along which axis of a value each axis of a row lies; None for an axis of size 1.
Way = tuple[int | None, ...]
# XLA computes other functions, such as `exp`, once, and not again for each element.
_CHEAP = frozenset(
    "abs add add_any and clamp convert_element_type copy div eq ge gt integer_pow le lt"
    " max min mul ne neg not or select_n sign square sub".split()
)


def spread_rows(graph: Graph, least: int) -> tuple[Var, ...]:
    """The rows that lie along two axes of one value of at least `least` numbers."""
    found: dict[Var, None] = {}
    ways: dict[Var, dict[Var, set[Way]]] = {}
    ways |= {v: {v: {_way(v)}} for v in graph.xs if ops.is_inexact(v)}
    for eqn in graph.eqns:
        moved: dict[Var, set[Way]] = {}
        for side, v in enumerate(eqn.invars):
            known = {} if isinstance(v, Literal) else ways.get(v, {})
            axes = _axes(eqn, side) if known else None
            if axes is None:
                continue
            for row in known:
                new = {tuple(map(axes.get, way)) for way in known[row]}
                moved.setdefault(row, set()).update(new)
        # Primitives that have several outputs are not cheap, so `moved` is empty then.
        for out in eqn.outvars if moved else ():
            ways[out] = moved
            if ops.size_of(ops.aval(out)) >= least:
                found |= dict.fromkeys(row for row in moved if len(moved[row]) > 1)
    return tuple(found)


def _way(v: Var) -> Way:
    """The axes of a row, as they lie in the row itself."""
    return tuple(None if n == 1 else i for i, n in enumerate(ops.aval(v).shape))


def _axes(eqn: JaxprEqn, side: int) -> Mapping[int | None, int] | None:
    """The axes of a result by those of an operand; None if it is not sliced there."""
    name, v = eqn.primitive.name, eqn.invars[side]
    if len(eqn.outvars) != 1:
        return None
    pairs = None
    if name in ("reshape", "squeeze"):
        pairs = of_reshape(*(ops.aval(u).shape for u in (v, *eqn.outvars)))
    elif not ops.is_reduction(eqn) and not _sums(eqn, side):
        pairs = kept_axes(eqn, side, _CHEAP)
    return None if pairs is None else dict(pairs)


def _sums(eqn: JaxprEqn, side: int) -> bool:
    """Whether an equation is a product with a sum: it reads whole arrays."""
    if eqn.primitive.name not in ops.PRODUCTS:
        return False
    contracted, _ = eqn.params["dimension_numbers"]
    shape = ops.aval(eqn.invars[side]).shape
    return any(shape[i] != 1 for i in contracted[side])
