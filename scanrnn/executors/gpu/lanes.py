"""Find the lanes of an elementwise step: independent recurrences of one number.

In a step such as `h = f * h + (1 - f) * x` each example and feature is a recurrence of
its own, a lane. Each array of such a step has some of the lanes' axes, in an order of
its own. The axes of arrays that an equation pairs are the same axis of the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.axes import kept_axes, of_reshape
from scanrnn.planner.ir.graph import Graph, needed, variables

# Primitives that change only the axes of their operand.
MOVES = {
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "transpose",
    "copy",
}
# What Triton computes for each element.
ELEMENTWISE = ops.ELEMENTWISE - {"erf", "erfc", "reduce_precision", "round"}

_Axis = tuple[Var, int]


class NotElementwiseError(Exception):
    """The reason why a step is not a set of independent lanes."""


class Lanes(NamedTuple):
    """The lanes of a step.

    Attributes:
      sizes: the sizes of the lanes' axes.
      axes: for each variable, the axis of the lanes that each of its axes is; None for
        an axis of size 1.
    """

    sizes: tuple[int, ...]
    axes: Mapping[Var, tuple[int | None, ...]]

    @property
    def count(self) -> int:
        """The number of lanes."""
        return math.prod(self.sizes)

    def places(self, v: Var, coordinates: Sequence) -> Any:
        """Where the elements of `v` for some lanes lie in the flat array of `v`.

        The coordinates of the lanes are one array for each of their axes.
        """
        place, stride = coordinates[0] * 0, 1
        for axis, size in reversed(
            [*zip(self.axes[v], ops.aval(v).shape, strict=True)]
        ):
            if axis is not None:
                place += coordinates[axis] * stride
            stride *= size
        return place


def lanes(graph: Graph) -> Lanes:
    """The lanes of a step without calls.

    Raises:
      NotElementwiseError: if there is none, with the equation that is in the way.
    """
    eqns = needed(graph.eqns, graph.outs)
    arrays = [*graph.carry, *graph.xs, *variables(graph.outs)]
    arrays += [v for e in eqns for v in (*variables(e.invars), *e.outvars)]
    same = _Same()
    for eqn in eqns:
        for one, other in _pairs(eqn):
            same.join(one, other)
    # A number that a lane carries is in the same lane after the step.
    for v, after in zip(graph.carry, graph.carry_out, strict=True):
        for u in variables([after]):
            for (_, i), axis in zip(_wide(v), _wide(u), strict=True):
                same.join((v, i), axis)
    widest = max(arrays, key=ops.bytes_of)
    _side_by_side(same, widest, arrays)
    roots: dict[_Axis, int] = {}
    for v in (widest, *arrays):
        found = [same.root(axis) for axis in _wide(v)]
        if len({*found}) < len(found):
            raise NotElementwiseError("two axes of an array meet in an equation")
        for root in found:
            roots.setdefault(root, _size(root))
    # The axes of the widest array come last, so that neighbours in it are neighbours.
    own = {same.root(axis) for axis in _wide(widest)}
    order = [r for r in roots if r not in own] + [r for r in roots if r in own]
    sizes = tuple(roots[r] for r in order)
    if math.prod(sizes) > max(math.prod(ops.aval(v).shape) for v in arrays):
        raise NotElementwiseError("its arrays have axes that no single array has")
    at = {root: i for i, root in enumerate(order)}
    return Lanes(sizes or (1,), {v: _axes(v, same, at) for v in arrays})


def _side_by_side(same: _Same, widest: Var, arrays: Sequence[Var]) -> None:
    """Give arrays that no equation pairs with the widest one the axes of that one.

    A thread can run one of their lanes beside one of the others, in any order.
    """
    for axis in dict.fromkeys(axis for v in arrays for axis in _wide(v)):
        if same.root(axis) in {same.root(own) for own in _wide(widest)}:
            continue
        for own in _wide(widest):
            pair = {same.root(axis), same.root(own)}
            rows = ({same.root(a) for a in _wide(v)} for v in arrays)
            if _size(axis) == _size(own) and not any(pair <= row for row in rows):
                same.join(axis, own)
                break


def _size(axis: _Axis) -> int:
    v, i = axis
    return ops.aval(v).shape[i]


def _axes(v: Var, same: _Same, at: Mapping[_Axis, int]) -> tuple[int | None, ...]:
    wide = {axis: at[same.root(axis)] for axis in _wide(v)}
    return tuple(wide.get((v, i)) for i in range(ops.aval(v).ndim))


def _wide(v: Var) -> list[_Axis]:
    """The axes of a variable that are longer than 1."""
    return [(v, i) for i, size in enumerate(ops.aval(v).shape) if size != 1]


def _pairs(eqn: JaxprEqn) -> list[tuple[_Axis, _Axis]]:
    """The axes that an equation pairs: of its operands, each with one of its result.

    A scalar has none: it stands for all elements, as the bounds of a clamp do.
    """
    name, (out, *others) = eqn.primitive.name, eqn.outvars
    if others or name not in ELEMENTWISE | MOVES:
        raise NotElementwiseError(f"{name} is not elementwise")
    found = []
    for side, v in enumerate(eqn.invars):
        if ops.is_literal(v):
            continue
        pairs = kept_axes(eqn, side, {*ELEMENTWISE, "copy"})
        if pairs is None:
            pairs = of_reshape(ops.aval(v).shape, ops.aval(out).shape)
        if pairs is None:
            raise NotElementwiseError("a reshape divides or joins axes")
        shape = ops.aval(v).shape
        found += [((v, i), (out, j)) for i, j in pairs if shape[i] != 1]
    return found


class _Same:
    """Sets of axes that are the same axis."""

    def __init__(self):
        self._parents: dict[_Axis, _Axis] = {}

    def root(self, axis: _Axis) -> _Axis:
        """The axis that stands for the set of an axis."""
        while axis in self._parents:
            axis = self._parents[axis]
        return axis

    def join(self, one: _Axis, other: _Axis) -> None:
        """Make two sets one."""
        one, other = self.root(one), self.root(other)
        if one != other:
            self._parents[one] = other
