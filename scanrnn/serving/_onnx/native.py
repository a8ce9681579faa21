"""Loops that ONNX has an operator for: LSTM, GRU and RNN.

They are found by their step: its jaxpr is that of one of our cells, whoever wrote it.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from scanrnn import cells
from scanrnn.planner import compat


class Native(NamedTuple):
    """A cell, and the operator that is like it."""

    cell: Any
    op: str
    order: tuple[int, ...]  # where the operator's gates are among ours
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
    """The results of a loop that is an operator; None if it is not.

    Args:
        graph: to add the node to.
        eqn: of a scan.
        arguments: names of values.
    """
    consts, carries = compat.scan_arity(eqn)
    avals = [var.aval for var in eqn.invars]
    weights = [graph.value(name) for name in arguments[:consts]]
    # One input, one axis of examples, weights that are known, and numbers of 32 bits.
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
    """The step of a loop, in the names that JAX prints."""
    body = eqn.params["jaxpr"]
    return str(getattr(body, "jaxpr", body))


def _kind(weight):
    return None if weight is None else weight.ndim


def _same_step(cell, step, avals, consts):
    """The names of the weights that a loop captures, if its step is the cell's."""
    xs, carry = avals[-1], avals[consts:-1]
    sizes = xs.shape[-1], carry[0].shape[-1]
    if any(aval.shape != (xs.shape[1], sizes[1]) for aval in carry):
        return None
    shapes = jax.eval_shape(lambda key: cell.init(key, *sizes), jax.random.key(0))
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
    """The operator, with a direction as an axis of its own."""
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
    """W, R and B: the gates in ONNX's order, along the first axis."""
    matrices = [
        graph.constant(_turned(params[name], native.order))
        for name in ("kernel", "recurrent_kernel")
    ]
    bias = params["bias"]
    second = np.zeros_like(bias)
    if "recurrent_bias" in params:
        second[-params["recurrent_bias"].size :] = params["recurrent_bias"]
    both = [_turned(b, native.order) for b in (bias, second)]
    return [*matrices, graph.constant(np.concatenate(both, axis=1))]


def _turned(a, order):
    parts = np.split(a, len(order), axis=-1)
    return np.concatenate([parts[k] for k in order], axis=-1).T[None]
