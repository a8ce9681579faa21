"""Haiku: cores under `dynamic_unroll`."""

import haiku as hk
import jax.numpy as jnp

from scanrnn import cells, interop
from tests.libraries import weights


def _run(make, ours, params, xs, carry):
    def unroll(xs, state):
        return hk.dynamic_unroll(make(carry[0].shape[-1]), xs, state)

    apply = hk.without_apply_rng(hk.transform(unroll)).apply
    state = tuple(jnp.asarray(field) for field in carry)
    many = len(state) > 1
    theirs = interop.to_haiku(weights(ours, params))
    ys, last = apply(theirs, xs, hk.LSTMState(*state) if many else state[0])
    return tuple(last) if many else (last,), ys


LAYERS = {
    "lstm": lambda *args: _run(hk.LSTM, cells.lstm(), *args),
    "gru-haiku": lambda *args: _run(hk.GRU, cells.gru(dialect="haiku"), *args),
    "elman_relu": lambda *args: _run(hk.VanillaRNN, cells.elman("relu"), *args),
}
