"""Keras 3 on JAX: an LSTM over sequences, some of which end early."""

import os

os.environ["KERAS_BACKEND"] = "jax"  # read once, when Keras is imported

import keras  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.programs._base import Program, lengths, normal  # noqa: E402

B, T, D, H = 16, 64, 128, 256


def _masked():
    keras.utils.set_random_seed(0)
    layer = keras.layers.LSTM(H, return_sequences=True)
    layer.build((B, T, D))
    state = [variable.value for variable in layer.non_trainable_variables]

    def apply(params, inputs):
        xs, mask = inputs
        return layer.stateless_call(params, state, xs, mask=mask)[0]

    return Program(
        sizes=f"T={T} B={B} D={D} H={H}",
        params=[variable.value for variable in layer.trainable_variables],
        inputs=(normal(B, T, D), np.arange(T) < lengths(B, T)[:, None]),
        apply=apply,
    )


PROGRAMS = {"LSTM with a mask, Keras": _masked}
