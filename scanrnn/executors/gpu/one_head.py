"""Make the step of one head from a step with heads; `one_slice` does it for slices.

The equations are traced again for pieces of features: each value is a list of arrays,
of which each has the examples and the features of a piece. So moving axes is nothing,
and what joins or splits features regroups the pieces.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.forms import Form, Piece
from scanrnn.executors.gpu.heads import HeadLayout, by_weight, count_of, places_of
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, eval_eqn, needed, variables
from scanrnn.planner.ir.retrace import graph_of

JOINS = {"reduce_sum": lax.add, "reduce_max": lax.max, "reduce_min": lax.min}


@dataclasses.dataclass(frozen=True, eq=False)
class OneHead:
    """The step of one head.

    Attributes:
      graph: the step; its arrays are pieces of those of the whole step.
      heads: the number of heads.
      forms: how the inputs and ys of the whole step lie in memory.
      inputs: which piece each input of the graph is.
      ys: which piece each of its ys is.
    """

    graph: Graph
    heads: int
    forms: Mapping[Var, Form]
    inputs: Sequence[Piece]
    ys: Sequence[Piece]

    @classmethod
    def of(cls, graph: Graph) -> OneHead:
        """The step of one head; the whole step if it has no heads.

        Raises:
          NotAKernelError: if it mixes the heads.
        """
        heads = count_of(graph)
        if heads is None:
            return _whole(graph)
        layout = HeadLayout.of(graph, heads, places_of(graph))
        return step_of_part(graph, layout, Ways(_matrices, _product, reduced))


class Ways(NamedTuple):
    """How to divide the equations that read several features.

    Attributes:
      matrices: `(products, graph, layout)` to the form of each matrix.
      product: `(eqn, operands, layout, graph)` to the pieces of a product.
      reduced: `(eqn, pieces, layout)` to the pieces of a reduction.
    """

    matrices: Callable[..., Mapping[Var, Any]]
    product: Callable[..., list]
    reduced: Callable[..., list]


def _whole(graph: Graph) -> OneHead:
    """A step without heads. A number is an array of one."""
    arrays = (*graph.inputs, *variables(graph.ys))
    forms = {v: Form.of(v, ops.aval(v).shape or (1,)) for v in arrays}
    weights = {*graph.weights}

    def piece(v: Var) -> Piece:
        if not ops.aval(v).ndim:
            return Piece(v, (0,))
        return Piece(v, () if v in weights else ("examples",))

    inputs = list(map(piece, graph.inputs))
    ys = [Piece(v, ("examples",)) for v in variables(graph.ys)]
    return OneHead(graph, 1, forms, inputs, ys)


def step_of_part(graph: Graph, layout: HeadLayout, ways: Ways) -> OneHead:
    """The step of one of the parts that a layout divides a step into.

    Raises:
      NotAKernelError: if an equation cannot be divided.
    """
    eqns = needed(graph.eqns, graph.outs)
    products = [e for e in eqns if by_weight(e, graph) is not None]
    matrices = ways.matrices(products, graph, layout)
    ys = variables(graph.ys)
    arrays = (*graph.inputs, *ys)
    forms = {v: matrices.get(v) or layout.form(v) for v in arrays}
    pieces = {
        v: [layout.matrix(v)] if v in matrices else layout.parts(v) for v in arrays
    }
    names = {
        v: [Var(_type(v, layout, matrices)) for _ in pieces[v]] for v in graph.inputs
    }
    groups = graph.weights, graph.carry, graph.xs
    flat = [[u for v in group for u in names[v]] for group in groups]

    def run(values):
        found = {v: [values[u] for u in us] for v, us in names.items()}
        for eqn in eqns:
            outs = _parts(eqn, found, layout, graph, ways)
            found.update(zip(eqn.outvars, outs, strict=True))
        pairs = zip((*graph.carry, *ys), graph.outs, strict=True)
        return [a for v, out in pairs for a in _out(v, out, found, layout)]

    step, constants = graph_of(run, *flat)
    assert not constants
    inputs = [piece for group in groups for v in group for piece in pieces[v]]
    made = [piece for v in ys for piece in pieces[v]]
    return OneHead(step, layout.heads, forms, inputs, made)


def _type(v: Var, layout: HeadLayout, matrices: Mapping[Var, Form]):
    """The type of a piece of an input."""
    aval = ops.aval(v)
    if v in matrices:
        return aval.update(shape=matrices[v].shape[1:])
    shape = (layout.rows(v), layout.pieces[v]) if aval.ndim else ()
    return aval.update(shape=shape)


def _matrices(products, graph: Graph, layout: HeadLayout) -> dict[Var, Form]:
    """The weights of products, each as a matrix for each head."""
    found: dict[Var, Form] = {}
    for eqn in products:
        side = by_weight(eqn, graph)
        assert side is not None
        v, data = eqn.invars[side], eqn.invars[1 - side]
        contracted, batch = eqn.params["dimension_numbers"]
        pairs = sorted(zip(contracted[1 - side], contracted[side], strict=True))
        summed, head = [i for i, _ in pairs], layout.head.get(data)
        if head is not None and head.axis in summed:
            raise NotAKernelError("a product mixes the heads")
        if v in layout.head and layout.head[v].axis not in batch[side]:
            raise NotAKernelError("a product makes all heads of what they share")
        if wide_axes(summed, data) != [i for i, _ in layout.rest(data)]:
            raise NotAKernelError("a product is not over all features of a head")
        rows = [j for _, j in pairs]
        columns = [i for i in range(ops.aval(v).ndim) if i not in (*rows, *batch[side])]
        order = (*batch[side], *rows, *columns)
        sizes = [
            ops.product(ops.aval(v).shape[i] for i in group)
            for group in (batch[side], rows, columns)
        ]
        form = Form(ops.aval(v), tuple(sizes), order)
        check_readers(graph.eqns, products, v, found.setdefault(v, form) == form)
    return found


def check_readers(eqns, products: Sequence[JaxprEqn], v: Var, same: bool) -> None:
    """Check that equations read a matrix in one way.

    Args:
      eqns: the equations of the step.
      products: those that are products by weights.
      v: the matrix.
      same: whether it has the form that it has for the products before.

    Raises:
      NotAKernelError: if it is read in several ways.
    """
    readers = {e for e in eqns if v in variables(e.invars)}
    if not same or readers - {*products}:
        raise NotAKernelError("it reads a matrix in several ways")


def _out(v: Var, atom: Any, found: Mapping[Var, list], layout: HeadLayout) -> list:
    """An output in the pieces of `v`, with all examples."""
    dtype, shape = ops.aval(v).dtype, (layout.rows(v), layout.pieces[v])
    parts = [atom.val] * layout.count(v) if isinstance(atom, Literal) else found[atom]
    return [jnp.broadcast_to(a, shape).astype(dtype) for a in parts]


def _parts(
    eqn: JaxprEqn, found: Mapping, layout: HeadLayout, graph: Graph, ways: Ways
) -> list[list]:
    """The results of an equation, each in pieces."""
    name, (out, *_) = eqn.primitive.name, eqn.outvars
    ins = [[v.val] if isinstance(v, Literal) else found[v] for v in eqn.invars]
    if name in ops.PRODUCTS:
        return [ways.product(eqn, ins, layout, graph)]
    if name in ("split", "concatenate"):
        axis = eqn.params["axis" if name == "split" else "dimension"]
        if any(i < axis for i, _ in layout.rest(out)):
            raise NotAKernelError(f"{name} takes features that are not side by side")
        given = iter([a for parts in ins for a in parts])
        return [[next(given) for _ in range(layout.count(v))] for v in eqn.outvars]
    if name in ("reshape", "squeeze", "copy"):
        return [ins[0]]
    if name == "transpose":
        axes = [eqn.params["permutation"][i] for i, _ in layout.rest(out)]
        if axes != sorted(axes):
            raise NotAKernelError("a transpose changes the order of features")
        return [ins[0]]
    if name == "broadcast_in_dim":
        shape = layout.rows(out), layout.pieces[out]
        return [[jnp.broadcast_to(a, shape) for a in _alike(eqn, ins, layout)[0]]]
    if name in JOINS:
        return [ways.reduced(eqn, ins[0], layout)]
    if name in ops.ELEMENTWISE:
        groups = zip(*_alike(eqn, ins, layout), strict=True)
        return [[eval_eqn(eqn, group)[0] for group in groups]]
    raise NotAKernelError(f"Triton has no {name}")


def wide_axes(axes: Sequence[int], v: Var) -> list[int]:
    """The axes of several numbers."""
    return [i for i in axes if ops.aval(v).shape[i] > 1]


def _alike(eqn: JaxprEqn, ins: Sequence[list], layout: HeadLayout) -> list[list]:
    """Operands with as many pieces as the result; one feature stands for all."""
    (out,) = eqn.outvars
    rest = [size for _, size in layout.rest(out)]
    for v in variables(eqn.invars):
        if [size for _, size in layout.rest(v)] not in ([], rest):
            raise NotAKernelError(f"{eqn.primitive.name} repeats features")
    count = layout.count(out)
    return [parts if len(parts) == count else parts * count for parts in ins]


def reduced(eqn: JaxprEqn, parts: list, layout: HeadLayout) -> list:
    """The result of a reduction over all features of a head."""
    name, axes, (v,) = eqn.primitive.name, eqn.params["axes"], variables(eqn.invars)
    if v in layout.head and layout.head[v].axis in axes:
        raise NotAKernelError(f"{name} mixes the heads")
    if wide_axes(axes, v) != [i for i, _ in layout.rest(v)]:
        raise NotAKernelError(f"{name} is not over all features of a head")
    params = eqn.params | {"axes": (1,)}
    made = [eqn.primitive.bind(a, **params)[:, None] for a in parts]
    return [functools.reduce(JOINS[name], made)]


def _product(
    eqn: JaxprEqn, ins: Sequence[list], layout: HeadLayout, graph: Graph
) -> list:
    """A product by the matrix of a head."""
    side, (out,) = by_weight(eqn, graph), eqn.outvars
    if side is None:
        raise NotAKernelError("it has a product that is not by a matrix")
    (matrix,), data = ins[side], ins[1 - side]
    product = lax.dot(
        jnp.concatenate(data, 1) if len(data) > 1 else data[0],
        matrix,
        precision=eqn.params["precision"],
        preferred_element_type=ops.aval(out).dtype,
    )
    sizes = [layout.pieces[out]] * layout.count(out)
    return list(lax.split(product, sizes, 1)) if len(sizes) > 1 else [product]
