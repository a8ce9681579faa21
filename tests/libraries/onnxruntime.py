"""onnxruntime: ONNX's own recurrent operators, values alone and in float32."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

IOFC = (0, 3, 1, 2)  # ONNX's order of our i, f, g, o
ZRH = (1, 0, 2)  # of our r, z, n


def _run(op, inputs, states, **attributes):
    """One node: the outputs `[T, B, H]`, and the last states."""
    names = [name if value is not None else "" for name, value in inputs.items()]
    given = {k: np.float32(v) for k, v in inputs.items() if v is not None}
    outs = ["Y", "Y_h", "Y_c"][: 1 + states]
    node = helper.make_node(op, names, outs, **attributes)

    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node],
        op,
        [info(name, value.shape) for name, value in given.items()],
        [info(name, [None] * (4 if name == "Y" else 3)) for name in outs],
    )
    opsets = [helper.make_opsetid("", 14)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ys, *last = session.run(None, given)
    return tuple(field[0] for field in last), ys[:, 0]


def _gates(a, order):
    """The gates along the last axis of ours, in ONNX's order, along the first."""
    parts = np.split(np.asarray(a), len(order), axis=-1)
    return np.concatenate([parts[k] for k in order], axis=-1).T[None]


def _inputs(params, xs, carry, order, second=None):
    bias = np.asarray(params["bias"])
    second = np.zeros_like(bias) if second is None else second
    return {
        "X": xs,
        "W": _gates(params["kernel"], order),
        "R": _gates(params["recurrent_kernel"], order),
        "B": np.concatenate([_gates(bias, order), _gates(second, order)], axis=1),
        "sequence_lens": None,
        "initial_h": carry[0][None],
    }


def _elman(activation):
    def run(params, xs, carry):
        inputs = _inputs(params, xs, carry, (0,))
        size = carry.h.shape[-1]
        return _run("RNN", inputs, 1, hidden_size=size, activations=[activation])

    return run


def _gru(after):
    def run(params, xs, carry):
        size, second = carry.h.shape[-1], None
        if after:
            second = np.concatenate([np.zeros(2 * size), params["recurrent_bias"]])
        inputs = _inputs(params, xs, carry, ZRH, second)
        return _run("GRU", inputs, 1, hidden_size=size, linear_before_reset=int(after))

    return run


def _lstm(params, xs, carry):
    inputs = _inputs(params, xs, carry, IOFC) | {"initial_c": carry.c[None]}
    if "peephole_i" in params:
        peepholes = [params[f"peephole_{gate}"] for gate in "iof"]
        inputs["P"] = np.concatenate(peepholes)[None]
    return _run("LSTM", inputs, 2, hidden_size=carry.h.shape[-1])


LAYERS = {
    "elman": _elman("Tanh"),
    "elman_relu": _elman("Relu"),
    "lstm": _lstm,
    "lstm-peephole": _lstm,
    "gru": _gru(after=True),
    "gru-cho2014": _gru(after=False),
}
