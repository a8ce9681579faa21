"""Loops that ONNX has an operator for: LSTM, GRU and RNN.

Such a loop is found by its step: the jaxpr of the step equals that of one of our cells.
It does not matter who wrote the step.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from scanrnn import cells
from scanrnn.cells._cell import param_types
from scanrnn.planner.ir import compat


class Native(NamedTuple):
    """A cell, and the operator that computes the same."""

    cell: Any
    op: str
    order: tuple[int, ...]  # for each gate of the operator, its place among our gates
    attributes: dict[str, Any]


_IOFC, _ZRH = (0, 3, 1, 2), (1, 0, 2)
NATIVE = (
    Native(cells.elman(), "RNN", (0,), {"activations": ["Tanh"]}),
    Native(cells.elman("relu"), "RNN", (0,), {"activations": ["Relu"]}),
    Native(cells.lstm(), "LSTM", _IOFC, {}),
    Native(cells.lstm(peephole=True), "LSTM", _IOFC, {}),
    Native(cells.gru(), "GRU", _ZRH, {"linear_before_reset": 1}),
    Native(cells.gru(dialect="cho2014"), "GRU", _ZRH, {"linear_before_reset": 0}),
)


def find(graph: Any, eqn: Any, arguments: list[str]) -> list[str] | None:
    """Add the operator that computes a loop, if there is one.

    Args:
        graph: the graph that gets the node.
        eqn: the equation of a `lax.scan`.
        arguments: names of its inputs in the graph.

    Returns:
        The names of its results; None if no operator computes the loop.
    """
    consts, carries = compat.scan_arity(eqn)
    avals = [var.aval for var in eqn.invars]
    weights = [graph.value(name) for name in arguments[:consts]]
    # An operator needs one input, one batch axis, known weights, and float32.
    if len(avals) != consts + carries + 1 or len(avals[-1].shape) != 3:
        return None
    if any(aval.dtype != np.float32 for aval in avals) or None in map(_kind, weights):
        return None
    step = _text(eqn)
    for native in NATIVE:
        if len(native.cell.carry_type._fields) != carries:
            continue
        names = _same_step(native.cell, step, avals, consts)
        if names is not None:
            params = dict(zip(names, weights, strict=True))
            return _node(graph, native, params, arguments[consts:], eqn)
    return None


def _text(eqn):
    """The step of a loop as text, with the variable names that JAX prints."""
    body = eqn.params["jaxpr"]
    return str(getattr(body, "jaxpr", body))


def _kind(weight):
    return None if weight is None else weight.ndim


def _same_step(cell, step, avals, consts):
    """The names of the loop's weights if its step is that of the cell, else None."""
    xs, carry = avals[-1], avals[consts:-1]
    if any(len(aval.shape) != 2 for aval in carry):
        return None
    sizes = xs.shape[-1], carry[0].shape[-1]
    if any(aval.shape != (xs.shape[1], sizes[1]) for aval in carry):
        return None
    shapes = param_types(cell, *sizes)
    if len(shapes) != consts:
        return None

    def loop(params, carry, xs):
        return lax.scan(functools.partial(cell.step, params), carry, xs)

    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in (*carry, xs)]
    shapes = {k: jax.ShapeDtypeStruct(v.shape, np.float32) for k, v in shapes.items()}
    jaxpr = jax.make_jaxpr(loop)(shapes, cell.carry_type(*specs[:-1]), specs[-1]).jaxpr
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    if _text(eqn) != step:
        return None
    names = dict(zip(jaxpr.invars, sorted(shapes), strict=False))
    return [names[var] for var in eqn.invars[:consts]]


def _node(graph, native, params, values, eqn):
    """Add the operator. In ONNX, the direction is an additional axis of size one."""
    *carry, xs = values
    hidden = eqn.invars[-2].aval.shape[-1]
    axis = graph.constant([0], np.int64)
    first = [graph.op("Unsqueeze", name, axis) for name in carry]
    inputs = [xs, *_weights(graph, native, params), "", *first]
    if "peephole_i" in params:
        peepholes = [params[f"peephole_{gate}"] for gate in "iof"]
        inputs.append(graph.constant(np.concatenate(peepholes)[None]))
    direction = "reverse" if eqn.params["reverse"] else "forward"
    outs = graph.ops(
        native.op,
        1 + len(carry),
        *inputs,
        hidden_size=hidden,
        direction=direction,
        **native.attributes,
    )
    ys, last = outs[0], outs[1:]
    ys = graph.op("Squeeze", ys, graph.constant([1], np.int64))
    return [*(graph.op("Squeeze", name, axis) for name in last), ys]


def _weights(graph, native, params):
    """The inputs W, R and B: gates in ONNX's order, one direction as the first axis."""
    matrices = [
        graph.constant(_transposed(params[name], native.order))
        for name in ("kernel", "recurrent_kernel")
    ]
    bias = params["bias"]
    second = np.zeros_like(bias)
    if "recurrent_bias" in params:
        second[-params["recurrent_bias"].size :] = params["recurrent_bias"]
    both = [_transposed(b, native.order) for b in (bias, second)]
    return [*matrices, graph.constant(np.concatenate(both, axis=1))]


def _transposed(a, order):
    parts = np.split(a, len(order), axis=-1)
    return np.concatenate([parts[k] for k in order], axis=-1).T[None]
