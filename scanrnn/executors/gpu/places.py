"""Find an axis, such as that of the heads, in all arrays of a step.

A step joins the heads and the features of each of them to one axis, and divides it
again. Another equation turns the axes. So the axis is followed from where it is known,
through each equation, from operands to results and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.axes import kept_axes
from scanrnn.planner.ir.graph import Graph, variables

# Primitives that cut an axis or join parts of it: a part may be one index of it.
_CUTS = {"split", "concatenate", "slice", "pad"}
# Primitives that leave every axis where it is.
_STAYS = ops.ELEMENTWISE | {"copy"} | _CUTS
# Axes of one variable, each with the same axis of another; None for a reshape.
_Pairs = Sequence[tuple[int, int]] | None


class AxisPlace(NamedTuple):
    """Where an axis lies in an array.

    Attributes:
      axis: the axis of the array that it is a part of.
      inner: how many elements of this axis belong together at each index of it.
    """

    axis: int
    inner: int = 1


def followed(
    graph: Graph, size: int, known: Mapping[Var, AxisPlace], name: str
) -> dict[Var, AxisPlace]:
    """The places of an axis of a size, from those that are known.

    Args:
      graph: the step.
      size: the size of the axis, at least 2: an axis of size 1 could be anywhere.
      known: some of the places.
      name: what lies along the axis, for errors.

    Raises:
      NotAKernelError: if two indices of the axis meet in an equation.
    """
    links: dict[Var, list] = {}
    for one, other, pairs, by in _links(graph):
        back = pairs and [(j, i) for i, j in pairs]
        links.setdefault(one, []).append((other, pairs, by))
        links.setdefault(other, []).append((one, back, by))
    found, new = dict(known), list(known)
    while new:
        v = new.pop()
        for other, pairs, by in links.get(v, ()):
            place = _moved(found[v], v, other, pairs, size)
            if place is None:
                if by not in _CUTS:
                    continue
                place = AxisPlace(-1)
            if other not in found:
                new.append(other)
            width = ops.aval(other).shape[place.axis] if place.axis >= 0 else 1
            same = found.setdefault(other, place) == place
            if not same or width % (size * place.inner):
                raise NotAKernelError(f"{by} does not keep the {name} apart")
    return found


def found_in_all(
    graph: Graph, lead: tuple[int, ...], known: Mapping[Var, AxisPlace], name: str
) -> dict[Var, AxisPlace]:
    """The places of the last axis of `lead`, also in arrays that never meet it.

    Such arrays, for example cotangents that are zero, have the axis where the carry has
    it, if their first axes have the sizes `lead`. Otherwise it is as `followed`.
    """
    size, place = lead[-1], AxisPlace(len(lead) - 1)
    found = followed(graph, size, known, name)
    for v in (*graph.carry, *graph.xs, *variables(graph.ys)):
        if ops.aval(v).shape[: len(lead)] == lead:
            found.setdefault(v, place)
    return followed(graph, size, found, name)


def _moved(
    place: AxisPlace, v: Var, other: Var, pairs: _Pairs, size
) -> AxisPlace | None:
    """The place in another array; None if the axis is not in that array."""
    shape = ops.aval(other).shape
    if pairs is None:
        within = place.inner * math.prod(ops.aval(v).shape[place.axis + 1 :])
        for axis, width in enumerate(shape):
            inner, rest = divmod(within, math.prod(shape[axis + 1 :]))
            if inner and not rest and not width % (inner * size):
                return AxisPlace(axis, inner)
        return AxisPlace(-1)
    axis = dict(pairs).get(place.axis)
    return None if axis is None or shape[axis] == 1 else AxisPlace(axis, place.inner)


def _links(graph: Graph) -> Iterable[tuple[Var, Var, _Pairs, str]]:
    """Pairs of variables that have axes in common, and by which equation."""
    for eqn in graph.eqns:
        for v, pairs in _axes(eqn):
            for out in eqn.outvars:
                yield v, out, pairs, eqn.primitive.name
    for v, out in zip(graph.carry, graph.carry_out, strict=True):
        if not isinstance(out, Literal):
            yield v, out, [(i, i) for i in range(ops.aval(v).ndim)], "the carry"


def _axes(eqn: JaxprEqn) -> Iterable[tuple[Var, _Pairs]]:
    """For each operand, its axes with those of the result that are the same."""
    for side, v in enumerate(eqn.invars):
        if isinstance(v, Literal) or not ops.aval(v).ndim:
            continue
        if eqn.primitive.name in ("reshape", "squeeze"):
            yield v, None
        elif (pairs := kept_axes(eqn, side, _STAYS)) is not None:
            yield v, pairs
