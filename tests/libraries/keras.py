"""Keras 3 on JAX: its layers through `stateless_call`."""

import jax
import jax.numpy as jnp
import keras

from tests.libraries import gates

# Keras's own tanh and sigmoid compute in float32.
TANH = {"activation": jnp.tanh}
GATES = {**TANH, "recurrent_activation": jax.nn.sigmoid}


def _run(make, weights, params, xs, carry, **options):
    layer = make(
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
        return _call(layer, weights, params, xs, carry)
    finally:
        keras.config.set_floatx(before)


def _call(layer, weights, params, xs, carry):
    layer.build((xs.shape[1], len(xs), xs.shape[2]))
    state = [variable.value for variable in layer.non_trainable_variables]
    first = [jnp.asarray(field) for field in carry]
    (ys, *last), _ = layer.stateless_call(
        weights(params), state, jnp.swapaxes(xs, 0, 1), initial_state=first
    )
    return tuple(last), jnp.swapaxes(ys, 0, 1)


def _plain(params):
    return [params["kernel"], params["recurrent_kernel"], params["bias"]]


def _gru_before(params):
    """Gates z, r, h."""
    return [gates(a, (1, 0, 2)) for a in _plain(params)]


def _gru_after(params):
    kernel, recurrent, bias = _gru_before(params)
    second = jnp.concatenate(
        [jnp.zeros(bias.size - params["recurrent_bias"].size), params["recurrent_bias"]]
    )
    return [kernel, recurrent, jnp.stack([bias, second])]


LAYERS = {
    "lstm": lambda *args: _run(keras.layers.LSTM, _plain, *args, **GATES),
    "elman": lambda *args: _run(keras.layers.SimpleRNN, _plain, *args, **TANH),
    "elman_relu": lambda *args: _run(
        keras.layers.SimpleRNN, _plain, *args, activation="relu"
    ),
    "gru": lambda *args: _run(keras.layers.GRU, _gru_after, *args, **GATES),
    "gru-cho2014": lambda *args: _run(
        keras.layers.GRU, _gru_before, *args, reset_after=False, **GATES
    ),
}
