"""Make the step of one slice of the features from a step with large matrices.

A slice has some features of the carry, and the same features of each gate. It computes
what a step does with them one by one. A product reads all features, so its operand is
exchanged between the slices; a slice multiplies it by the columns of its own. For a
norm, the slices exchange the sums of their features.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors.gpu import one_head
from scanrnn.executors.gpu.block_checks import LEAST_SIDE, NotAKernelError
from scanrnn.executors.gpu.heads import HeadLayout, by_weight
from scanrnn.executors.gpu.one_head import OneHead
from scanrnn.executors.gpu.places import AxisPlace
from scanrnn.executors.gpu.slice_costs import split_of
from scanrnn.executors.kernels.slice_ops import product_p, reduction_p
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, needed, variables
from scanrnn.planner.passes.wide_sums import wide


class SlicedMatrix(NamedTuple):
    """How the matrix of a product lies in memory: one matrix for each slice.

    The rows of a slice's matrix are its columns of the whole one, those of each gate.
    The left of a product may be several arrays side by side, such as the cotangents of
    all gates: its *operands*. The matrix has rows for each of them. If the operands are
    divided between slices, it has rows of one operand for each of these slices.

    Attributes:
      aval: the type of the matrix in the step.
      summed: its axis over which the product sums.
      operands: the number of operands.
      gates: the number of gates.
      slices: the number of slices.
      split: between how many slices the operands are divided.
    """

    aval: Any
    summed: int
    operands: int
    gates: int
    slices: int
    split: int

    @property
    def features(self) -> int:
        """The features of a slice."""
        return self.aval.shape[1 - self.summed] // (self.gates * self.slices)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The slices, the rows of each of them, and their length."""
        rows = self.operands * self.gates * self.features
        length = self.aval.shape[self.summed] // self.operands
        return self.slices, max(LEAST_SIDE, 1 << (rows - 1).bit_length()), length

    def stored(self, array):
        """The matrix as it lies in memory. Rows beyond the last one are zeros."""
        slices, height, length = self.shape
        whose = slices // self.split, self.split
        sizes = self.gates, *whose, self.features, self.operands, length
        array = jnp.moveaxis(array, self.summed, 1).reshape(sizes)
        order = (1, 4, 2, 0, 3, 5) if self.split > 1 else (1, 2, 4, 0, 3, 5)
        rows = array.transpose(order).reshape(slices, -1, length)
        return jnp.pad(rows, ((0, 0), (0, height - rows.shape[1]), (0, 0)))


def width_of(graph: Graph) -> int:
    """The features of the carry: those of the narrowest array that has several.

    Raises:
      NotAKernelError: if it has none.
    """
    sizes = [ops.aval(v).shape for v in graph.carry]
    wide = [shape[1] for shape in sizes if len(shape) == 2 and shape[1] > 1]
    if not wide:
        raise NotAKernelError("its carry has no axis of features")
    return min(wide)


def one_slice(graph: Graph, features: int, examples: int) -> OneHead:
    """The step of a slice with so many features; its heads are the slices.

    How operands are divided depends on the examples that a program will have.

    Raises:
      NotAKernelError: if the features cannot be divided.
    """
    width = width_of(graph)
    products = [e for e in graph.eqns if e.primitive.name in ops.PRODUCTS]
    made = [v for e in products for v in (*variables(e.invars), *e.outvars)]
    known = {
        v: AxisPlace(1, features)
        for v in {*graph.carry, *made}.difference(graph.weights)
        if ops.aval(v).ndim == 2 and not ops.aval(v).shape[1] % width
    }
    layout = HeadLayout.of(graph, width // features, known)
    ways = one_head.Ways(
        functools.partial(_matrices, examples),
        functools.partial(_product, examples),
        _reduced,
    )
    return one_head.step_of_part(graph, layout, ways)


def _matrices(
    examples: int, products: Sequence[JaxprEqn], graph: Graph, layout: HeadLayout
) -> dict[Var, SlicedMatrix]:
    """The weights of products, each as a matrix for each slice."""
    found: dict[Var, SlicedMatrix] = {}
    for eqn in products:
        (data, v), (out,) = variables(eqn.invars), eqn.outvars
        (ours, theirs), batch = eqn.params["dimension_numbers"]
        flat = all(ops.aval(u).ndim == 2 for u in (data, v, out))
        if by_weight(eqn, graph) != 1 or any(batch) or not flat or ours != (1,):
            raise NotAKernelError("it has a product that is not of rows by a matrix")
        if data not in layout.head or out not in layout.head:
            raise NotAKernelError("a product is not over all features of the carry")
        for u in (data, out):
            beside = [axis for axis, _ in layout.rest(u)]
            if layout.pieces[u] != layout.inner(u) or beside != [1]:
                raise NotAKernelError("features of a product lie in another order")
        counts = layout.count(data), layout.count(out), layout.heads
        split = _split(data, examples, layout)
        form = SlicedMatrix(ops.aval(v), theirs[0], *counts, split)
        same = found.setdefault(v, form) == form
        eqns = needed(graph.eqns, graph.outs)
        one_head.check_readers(eqns, products, v, same)
    return found


def _split(data: Var, examples: int, layout: HeadLayout) -> int:
    """Between how many slices the operands of a product are divided."""
    operands = layout.count(data)
    row = ops.bytes_in([data]) // ops.aval(data).shape[0] // operands
    return split_of(operands, examples, row, layout.heads)


def _product(
    examples: int, eqn: JaxprEqn, ins: Sequence[list], layout: HeadLayout, graph: Graph
) -> list:
    """A slice of each gate of a product."""
    (out,), (data, _) = eqn.outvars, variables(eqn.invars)
    if by_weight(eqn, graph) is None:
        raise NotAKernelError("it has a product that is not by a matrix")
    parts, (matrix,) = ins
    return product_p.bind(
        *parts,
        matrix,
        gates=layout.count(out),
        features=layout.pieces[out],
        split=_split(data, examples, layout),
        dtype=ops.aval(out).dtype,
        precision=eqn.params["precision"],
    )


def _reduced(eqn: JaxprEqn, parts: list, layout: HeadLayout) -> list:
    """A reduction over all features: first those of a slice, then all slices."""
    (v,), (out,) = variables(eqn.invars), eqn.outvars
    if v not in layout.head or layout.head[v].axis not in eqn.params["axes"]:
        return one_head.reduced(eqn, parts, layout)
    axes = [i for i, _ in layout.rest(v)]
    if one_head.wide_axes(eqn.params["axes"], v) != axes:
        raise NotAKernelError(f"{eqn.primitive.name} is not over all features")
    name, dtype = eqn.primitive.name, ops.aval(out).dtype
    if not ops.is_inexact(v):
        raise NotAKernelError(f"it has a {name} of {dtype} over all features")
    own = [
        eqn.primitive.bind(a.astype(wide(dtype)), **eqn.params | {"axes": (1,)})
        for a in parts
    ]
    joined = functools.reduce(one_head.JOINS[name], own)[:, None]
    return [reduction_p.bind(joined, name=name).astype(dtype)]
