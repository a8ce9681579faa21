"""The layout of a step with heads: where batch, heads and features of arrays lie.

Heads are recurrences side by side, each with matrices of its own: the product of all of
them is one product with an axis for the heads. Nothing else needs to mix them, and then
each program of a kernel runs one head. Its arrays have two axes: examples, and the
features of the head, in pieces. A step that has gates side by side, for example, has
them in pieces.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from jax.extend.core import JaxprEqn, Var

from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.executors.gpu.places import AxisPlace, followed, found_in_all
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, variables


def count_of(graph: Graph) -> int | None:
    """The number of heads; None if no product by weights has heads."""
    sizes = set()
    for eqn in graph.eqns:
        side = by_weight(eqn, graph)
        if side is not None and (batch := _batch(eqn)[side]):
            shape = ops.aval(eqn.invars[side]).shape
            sizes.add(tuple(shape[i] for i in batch))
    if not sizes:
        return None
    if len(sizes) > 1 or len(next(iter(sizes))) > 1:
        raise NotAKernelError(
            f"its products have the heads {sorted(sizes)}, not one axis"
        )
    return sizes.pop()[0]


def by_weight(eqn: JaxprEqn, graph: Graph) -> int | None:
    """Which factor of a product is a weight, if it is a product by one."""
    if eqn.primitive.name not in ops.PRODUCTS:
        return None
    sides = [i for i, v in enumerate(eqn.invars) if v in {*graph.weights}]
    return sides[0] if len(sides) == 1 else None


def _batch(eqn: JaxprEqn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return eqn.params["dimension_numbers"][1]


def places_of(graph: Graph) -> dict[Var, AxisPlace]:
    """The places of the heads in products by weights."""
    return {
        v: AxisPlace(axes[0])
        for eqn in graph.eqns
        if by_weight(eqn, graph) is not None
        for v, axes in zip(variables(eqn.invars), _batch(eqn), strict=True)
        if axes
    }


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """Where batch, heads and features lie in the arrays of a step.

    Attributes:
      heads: the number of heads.
      batch: the size of the batch.
      head: the places of the heads. If there is one head, it has no places.
      example: the places of the batch, in the same way.
      weights: the arrays that have no batch.
      pieces: for each array, the features of a piece. An array with one feature for
        each head has one piece.
    """

    heads: int
    batch: int
    head: Mapping[Var, AxisPlace]
    example: Mapping[Var, AxisPlace]
    weights: frozenset[Var]
    pieces: dict[Var, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, heads: int, known: Mapping[Var, AxisPlace]) -> HeadLayout:
        """The layout of a step, from some places of the heads.

        Raises:
          NotAKernelError: if it mixes the heads, or the examples.
        """
        sizes = {ops.aval(v).shape[:1] for v in graph.carry}
        if len(sizes) != 1 or () in sizes:
            raise NotAKernelError("not all its arrays have a batch as their first axis")
        batch = sizes.pop()[0]
        head = followed(graph, heads, known, "heads") if heads > 1 else {}
        if any(v in head and head[v].axis == 0 for v in graph.carry):
            raise NotAKernelError("its arrays have the heads before the batch")
        carry = dict.fromkeys(graph.carry, AxisPlace(0))
        example = {}
        if batch > 1:
            example = found_in_all(graph, (batch,), carry, "batch")
        for v, place in example.items():
            whole = ops.aval(v).shape[place.axis] == batch
            if not whole or place.axis == head.get(v, AxisPlace(-1)).axis:
                raise NotAKernelError("a reshape joins the batch and other axes")
        layout = cls(heads, batch, head, example, frozenset(graph.weights))
        layout._cut(graph)
        return layout

    def _cut(self, graph: Graph) -> None:
        """Find pieces such that each equation has the same ones in all its arrays."""
        groups = []
        for eqn in graph.eqns:
            arrays = [*variables(eqn.invars), *eqn.outvars]
            alike = eqn.primitive.name not in ops.PRODUCTS
            for group in [arrays] if alike else [[v] for v in arrays]:
                groups.append([v for v in group if self.width(v) > 1])
        pairs = zip(graph.carry, graph.carry_out, strict=True)
        groups += [variables(pair) for pair in pairs]
        for v in (*graph.inputs, *(v for e in graph.eqns for v in e.outvars)):
            self.pieces[v] = self.inner(v)
        before: dict[Var, int] = {}
        while before != self.pieces:
            before = dict(self.pieces)
            for group in groups:
                size = math.gcd(*(self.pieces[v] for v in group))
                self.pieces.update(dict.fromkeys(group, size))

    def rest(self, v: Var) -> list[tuple[int, int]]:
        """The axes of the features of a head, and their sizes above 1."""
        head, example = self.head.get(v), self.example.get(v)
        sizes = enumerate(ops.aval(v).shape)
        found = [
            (i, size // self.heads if head and i == head.axis else size)
            for i, size in sizes
            if example is None or i != example.axis
        ]
        return [(i, size) for i, size in found if size > 1]

    def width(self, v: Var) -> int:
        """The number of features of a head."""
        return math.prod(size for _, size in self.rest(v))

    def inner(self, v: Var) -> int:
        """The features of a head that lie side by side in memory."""
        head = self.head.get(v)
        if head is None:
            return self.width(v)
        return head.inner * math.prod(s for i, s in self.rest(v) if i > head.axis)

    def count(self, v: Var) -> int:
        """The number of pieces of an array."""
        return self.width(v) // self.pieces[v]

    def rows(self, v: Var) -> int:
        """The examples in an array: one stands for all if it is the same for all."""
        return self.batch if v in self.example else 1

    def form(self, v: Var) -> Form:
        """How an array that is not only a matrix lies in memory."""
        if not ops.aval(v).ndim:
            return Form.of(v, (1,))
        size, inner, example = self.pieces[v], self.inner(v), self.example.get(v)
        outer, heads = self.width(v) // inner, self.heads if v in self.head else 1
        axes = [*range(ops.aval(v).ndim)]
        if example is not None:
            axes.insert(0, axes.pop(example.axis))
        if v in self.weights:
            # One row is read, and each piece keeps both its axes.
            shape = (outer, heads, inner // size, 1, size)
        else:
            shape = (self.batch, outer, heads, inner // size, size)
        return Form(ops.aval(v), shape, tuple(axes))

    def parts(self, v: Var) -> list[Piece]:
        """The pieces of an array, in the order of the features."""
        if not ops.aval(v).ndim:
            return [Piece(v, (0,))]
        each, head = self.inner(v) // self.pieces[v], "head" if v in self.head else 0
        lead = () if v in self.weights else ("examples",)
        return [
            Piece(v, (*lead, i // each, head, i % each)) for i in range(self.count(v))
        ]

    def matrix(self, v: Var) -> Piece:
        """The matrix of a head."""
        return Piece(v, ("head" if v in self.head else 0,))
