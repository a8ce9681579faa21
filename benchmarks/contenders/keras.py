"""Keras 3 on JAX: its layers by `stateless_call`, in their batch-major layout."""

import functools
import os

os.environ["KERAS_BACKEND"] = "jax"  # read once, when Keras is imported

import keras  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.contenders._base import (  # noqa: E402
    Contender,
    JaxRunner,
    Model,
    split_joint,
)

LAYERS = {
    "lstm": keras.layers.LSTM,
    "gru": keras.layers.GRU,
    "elman": keras.layers.SimpleRNN,
    "conv_lstm": functools.partial(
        keras.layers.ConvLSTM2D,
        kernel_size=3,
        padding="same",
        recurrent_activation="sigmoid",
    ),
}
ZRN = (1, 0, 2)  # the order of Keras's GRU is z, r, h; ours is r, z, n


def supports(case):
    if case.cell not in LAYERS:
        return f"keras has no {case.cell}"
    if case.cell == "gru" and case.dtype != "float32":
        return "keras GRU(dtype=mixed_bfloat16) changes its carry's dtype and fails"
    return None


def model(problem):
    case, w = problem.case, problem.weights
    policy = "float32" if case.dtype == "float32" else f"mixed_{case.dtype}"
    layer = LAYERS[case.cell](case.H, return_sequences=not case.last, dtype=policy)
    layer.build((case.B, case.T, *case.places, case.D))
    layer.set_weights(_to_keras(w, case))
    state = [variable.value for variable in layer.non_trainable_variables]

    def apply(params, xs):
        ys = layer.stateless_call(params, state, xs)[0]
        return ys[:, None] if case.last else ys

    return Model(
        params=[variable.value for variable in layer.trainable_variables],
        apply=apply,
        export=lambda params: _export(case.cell, [np.asarray(p) for p in params]),
        batch_major=True,
    )


def _to_keras(w, case):
    if case.cell == "lstm":
        return [*split_joint(w, case.D), w["b"]]
    if case.cell in ("elman", "conv_lstm"):
        return [w["wx"], w["wh"], w["b"]]
    recurrent = np.concatenate([np.zeros(2 * case.H, np.float32), w["bn"]])
    biases = np.stack([_reorder(w["b"]), _reorder(recurrent)])
    return [_reorder(w["wx"]), _reorder(w["wh"]), biases]


def _export(cell, params):
    wx, wh, b = params
    if cell == "lstm":
        return {"w": np.concatenate([wx, wh]), "b": b}
    if cell in ("elman", "conv_lstm"):
        return {"wx": wx, "wh": wh, "b": b}
    bn = b[1, -wh.shape[0] :]
    return {"wx": _reorder(wx), "wh": _reorder(wh), "b": _reorder(b[0]), "bn": bn}


def _reorder(a):
    gates = np.split(a, 3, axis=-1)
    return np.concatenate([gates[n] for n in ZRN], axis=-1)


CONTENDERS = [
    Contender("keras", supports, lambda p: JaxRunner(p, model(p)), model=model)
]
