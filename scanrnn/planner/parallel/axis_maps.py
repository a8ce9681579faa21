"""Which axes of a value are axes of a leaf of the carry.

Along a *kept* axis, an element of the value depends only on elements of the leaf with
the same index. Along a *mixed* axis it may depend on all of them. The value may have
an axis of the leaf split in two, or joined with another axis. So each axis of the value
is a list of parts of axes of the leaf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class AxisPart(NamedTuple):
    """A part of an axis of a leaf: `index // stride % size`.

    The axis is None if the part belongs to no axis of the leaf.
    """

    axis: int | None
    stride: int
    size: int


class AxisMap(NamedTuple):
    """How a value depends on a leaf of the carry, linearly.

    Attributes:
      dims: for each axis of the value, its parts, from the axes of the leaf.
      mixed: axes of the leaf along which elements are mixed.
      unit: whether each factor of the leaf in the value is known to be one.
    """

    dims: tuple[tuple[AxisPart, ...], ...]
    mixed: frozenset[int] = frozenset()
    unit: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return tuple(math.prod(p.size for p in dim) for dim in self.dims)

    def scaled(self) -> AxisMap:
        """This value times a factor."""
        return self._replace(unit=False)

    def placed(self, shape: Sequence[int], at: Sequence[int]) -> AxisMap:
        """This value broadcast to a shape; `at` says where its own axes go."""
        dims = list(map(other, shape))
        for i, dim, size in zip(at, self.dims, self.shape, strict=True):
            if shape[i] == size:
                dims[i] = dim
        return self._replace(dims=tuple(dims))

    def without(self, axes: Sequence[int], mix: bool = True) -> AxisMap:
        """This value without some axes: summed over, or (not `mix`) of size 1."""
        rest = tuple(d for i, d in enumerate(self.dims) if i not in axes)
        lost = _axes(self.dims[i] for i in axes) if mix else frozenset()
        return AxisMap(rest, self.mixed | lost, self.unit and not mix)

    def transposed(self, order: Sequence[int]) -> AxisMap:
        """This value with its axes in another order."""
        return self._replace(dims=tuple(self.dims[i] for i in order))

    def blurred(self, shape: Sequence[int], axes: Sequence[int]) -> AxisMap:
        """A value of another shape that mixes elements of this one along some axes."""
        dims = [other(s) if i in axes else self.dims[i] for i, s in enumerate(shape)]
        lost = _axes(self.dims[i] for i in axes)
        return AxisMap(tuple(dims), self.mixed | lost, unit=False)

    def reshaped(self, shape: Sequence[int]) -> AxisMap:
        """This value in another shape."""
        dims = _regrouped([p for dim in self.dims for p in dim], shape)
        if dims is None:
            return AxisMap(tuple(map(other, shape)), _axes(self.dims), False)
        return self._replace(dims=dims)

    def merged(self, more: AxisMap) -> AxisMap:
        """The sum of two values that depend on the leaf."""
        pairs = list(zip(self.dims, more.dims, strict=True))
        same = [a == b for a, b in pairs]
        lost = _axes(d for p, ok in zip(pairs, same, strict=True) if not ok for d in p)
        sizes = zip(self.dims, same, self.shape, strict=True)
        dims = tuple(dim if ok else other(size) for dim, ok, size in sizes)
        return AxisMap(dims, self.mixed | more.mixed | lost, False)


def of_leaf(shape: Sequence[int]) -> AxisMap:
    """The map of a leaf of the carry itself."""
    return AxisMap(tuple(_normal([AxisPart(i, 1, s)]) for i, s in enumerate(shape)))


def other(size: int) -> tuple[AxisPart, ...]:
    """An axis that is not an axis of the leaf."""
    return _normal([AxisPart(None, 0, size)])


def kept(value: AxisMap, shape: Sequence[int]) -> frozenset[int]:
    """The kept axes of a value that has the shape of the leaf."""
    leaf = of_leaf(shape).dims
    pairs = enumerate(zip(value.dims, leaf, strict=True))
    return frozenset(i for i, (a, b) in pairs if a == b and i not in value.mixed)


def _axes(dims) -> frozenset[int]:
    return frozenset(p.axis for dim in dims for p in dim if p.axis is not None)


def _normal(parts: Sequence[AxisPart]) -> tuple[AxisPart, ...]:
    """The same axis in as few parts as possible."""
    found: list[AxisPart] = []
    for part in parts:
        outer = part.axis, part.stride * part.size
        if found and found[-1][:2] == outer:
            found[-1] = part._replace(size=found[-1].size * part.size)
        elif part.size > 1:
            found.append(part)
    return tuple(found)


def _regrouped(parts: Sequence[AxisPart], shape: Sequence[int]):
    """Regroup parts, in order, as axes of given sizes; None if that is impossible."""
    rest, dims = list(parts), []
    for size in shape:
        dim, wanted = [], size
        while wanted > 1:
            if not rest:  # an axis of size 0 has no parts
                return None
            part = rest.pop(0)
            if part.size > wanted:
                if part.size % wanted:
                    return None
                low = part.size // wanted
                rest.insert(0, part._replace(size=low))
                part = part._replace(stride=part.stride * low, size=wanted)
            if wanted % part.size:
                return None
            wanted //= part.size
            dim.append(part)
        dims.append(_normal(dim))
    return tuple(dims)
