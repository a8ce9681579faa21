"""Take an elementwise product apart: its factors, each by the axes that it spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.axes import of_reshape
from scanrnn.planner.ir.graph import Graph

# The most factors of a value. Numbers by the rule of Fibonacci have millions.
_MOST = 64


class NoMemoryError(Exception):
    """The reason why a leaf is not a matrix memory."""


class Factor(NamedTuple):
    """A factor of an elementwise product.

    Attributes:
      atom: its value.
      axes: for each of its axes, the axis of the product; None if its size is 1.
    """

    atom: Any
    axes: tuple[int | None, ...]

    @property
    def spans(self) -> set[int]:
        """The axes of the product along which the factor is not constant."""
        return {axis for axis in self.axes if axis is not None}


def placed(atom, axes: Sequence[int | None]) -> Factor:
    """A value as a factor; its axes of size 1 are no axes of the product."""
    sizes = zip(axes, ops.aval(atom).shape, strict=False)
    return Factor(atom, tuple(i if n != 1 else None for i, n in sizes))


def factors(graph: Graph, atom, axes: Sequence[int | None] | None = None) -> list:
    """The factors of a value.

    `axes` says for each of its axes which axis of the whole product it is; None for the
    same axis. A value that spans one axis is not taken apart.

    Raises:
      NoMemoryError: if there are too many.
    """
    of = range(ops.aval(atom).ndim) if axes is None else axes
    todo, found = [placed(atom, of)], []
    while todo:
        whole = todo.pop()
        parts = _parts(graph, whole, _PARTS) if len(whole.spans) > 1 else None
        if parts is None:
            found.append(whole)
        else:
            todo += [placed(*part) for part in reversed(parts)]
        if len(todo) + len(found) > _MOST:
            raise NoMemoryError("a product in it has too many factors")
    return found


def viewed(graph: Graph, factor: Factor) -> Factor:
    """The value that a factor only reshapes, broadcasts, or casts to more bits."""
    while (parts := _parts(graph, factor, _VIEWS)) is not None:
        factor = placed(*parts[0])
    return factor


def _parts(graph: Graph, whole: Factor, rules: dict) -> list | None:
    """The values that make a value, with their axes; None if no rule takes it apart."""
    eqn = graph.producer(whole.atom)
    if eqn is None or eqn.primitive.name not in rules:
        return None
    return rules[eqn.primitive.name](eqn, whole.axes)


def _of_product(eqn, axes):
    if eqn.invars[0] is eqn.invars[1]:
        return None  # a power is one factor
    return [(a, axes) for a in eqn.invars]


def _of_broadcast(eqn, axes):
    (a, *_), dims = eqn.invars, eqn.params["broadcast_dimensions"]
    sizes = zip(dims, ops.aval(a).shape, strict=True)
    return [(a, tuple(axes[d] if n != 1 else None for d, n in sizes))]


def _of_reshape(eqn, axes):
    (a, *_), (out,) = eqn.invars, eqn.outvars
    old = ops.aval(a).shape
    pairs = of_reshape(old, ops.aval(out).shape)
    if pairs is None:
        return None
    wide = {i: axes[j] for i, j in pairs}
    return [(a, tuple(map(wide.get, range(len(old)))))]


def _of_transpose(eqn, axes):
    (a,), permutation = eqn.invars, eqn.params["permutation"]
    where = dict(zip(permutation, axes, strict=True))
    return [(a, tuple(where[i] for i in range(len(axes))))]


def _of_cast(eqn, axes):
    (a,), (out,) = eqn.invars, eqn.outvars
    if not (ops.is_real(a) and ops.is_inexact(out)):
        return None
    old, new = (jnp.finfo(ops.aval(v).dtype) for v in (a, out))
    widens = old.nmant <= new.nmant and old.maxexp <= new.maxexp
    return [(a, axes)] if widens else None


def _of_outer(eqn, axes):
    """The operands of a product that sums over nothing."""
    (contract, batch), found = eqn.params["dimension_numbers"], []
    if contract[0]:
        return None
    at = len(batch[0])
    for a, own in zip(eqn.invars, batch, strict=True):
        where = dict(zip(own, axes, strict=False))
        for i in range(ops.aval(a).ndim):
            if i not in where:
                where[i], at = axes[at], at + 1
        found.append((a, tuple(where[i] for i in range(ops.aval(a).ndim))))
    return found


_VIEWS = {
    "broadcast_in_dim": _of_broadcast,
    "reshape": _of_reshape,
    "squeeze": _of_reshape,
    "transpose": _of_transpose,
    "convert_element_type": _of_cast,
}
_PARTS = {"mul": _of_product, "dot_general": _of_outer, **_VIEWS}
