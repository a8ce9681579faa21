"""Flax Linen: `RNN` over its cells."""

import flax.linen as nn
import jax.numpy as jnp

from scanrnn import cells, interop
from tests.libraries import weights


def _run(make, ours, params, xs, carry, flip=False):
    rnn = nn.RNN(make(carry[0].shape[-1]), time_major=True, return_carry=True)
    first = tuple(jnp.asarray(field) for field in carry)
    first = first[::-1] if flip else first[0]
    (tree,) = interop.to_linen(weights(ours, params))
    variables = {"params": tree}
    last, ys = rnn.apply(variables, xs, initial_carry=first)
    return (last[::-1] if flip else (last,)), ys


LAYERS = {
    "lstm": lambda *args: _run(nn.LSTMCell, cells.lstm(), *args, flip=True),
    "gru": lambda *args: _run(nn.GRUCell, cells.gru(), *args),
    "elman": lambda *args: _run(nn.SimpleCell, cells.elman(), *args),
    "mgu": lambda *args: _run(nn.MGUCell, cells.mgu(), *args),
}
