"""Keras 3 on JAX: its layers through `stateless_call`."""

import jax
import jax.numpy as jnp
import keras

from scanrnn import cells, interop
from tests.libraries import weights

# Keras's own tanh and sigmoid compute in float32.
TANH = {"activation": jnp.tanh}
GATES = {**TANH, "recurrent_activation": jax.nn.sigmoid}


def _run(kind, ours, params, xs, carry, **options):
    # By name: a test may put another in its place.
    layer = getattr(keras.layers, kind)(
        carry[0].shape[-1],
        return_sequences=True,
        return_state=True,
        dtype="float64",
        **options,
    )
    # Beside dtype: Keras casts what is no variable to its own default.
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        return _call(layer, ours, params, xs, carry)
    finally:
        keras.config.set_floatx(before)


def _call(layer, ours, params, xs, carry):
    layer.build((xs.shape[1], len(xs), xs.shape[2]))
    state = [variable.value for variable in layer.non_trainable_variables]
    first = [jnp.asarray(field) for field in carry]
    (arrays,) = interop.to_keras(weights(ours, params))
    (ys, *last), _ = layer.stateless_call(
        arrays, state, jnp.swapaxes(xs, 0, 1), initial_state=first
    )
    return tuple(last), jnp.swapaxes(ys, 0, 1)


def _layer(kind, ours, **options):
    return lambda *args: _run(kind, ours, *args, **options)


LAYERS = {
    "lstm": _layer("LSTM", cells.lstm(), **GATES),
    "elman": _layer("SimpleRNN", cells.elman(), **TANH),
    "elman_relu": _layer("SimpleRNN", cells.elman("relu"), activation="relu"),
    "gru": _layer("GRU", cells.gru(), **GATES),
    "gru-cho2014": _layer(
        "GRU", cells.gru(dialect="cho2014"), reset_after=False, **GATES
    ),
}
