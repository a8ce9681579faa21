"""Flax NNX: `RNN` over its cells."""

import jax.numpy as jnp
from flax import nnx

from scanrnn import cells, interop
from tests.libraries import weights


def _run(make, ours, params, xs, carry, flip=False):
    sizes = xs.shape[-1], carry[0].shape[-1]
    cell = make(*sizes, dtype=jnp.float64, rngs=nnx.Rngs(0))
    (tree,) = interop.to_nnx(weights(ours, params), optimized=make is not nnx.LSTMCell)
    nnx.update(cell, tree["cell"])
    first = tuple(jnp.asarray(field) for field in carry)
    first = first[::-1] if flip else first[0]
    rnn = nnx.RNN(cell, time_major=True, return_carry=True)
    last, ys = rnn(xs, initial_carry=first)
    return (tuple(last)[::-1] if flip else (last,)), ys


LAYERS = {
    "lstm": lambda *args: _run(nnx.OptimizedLSTMCell, cells.lstm(), *args, flip=True),
    "elman": lambda *args: _run(nnx.SimpleCell, cells.elman(), *args),
}
