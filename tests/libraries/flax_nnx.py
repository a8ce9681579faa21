"""Flax NNX: `RNN` over its cells."""

import jax.numpy as jnp
from flax import nnx


def _run(make, names, params, xs, carry, flip=False):
    sizes = xs.shape[-1], carry[0].shape[-1]
    cell = make(*sizes, dtype=jnp.float64, rngs=nnx.Rngs(0))
    graph, state = nnx.split(cell)
    flat = nnx.to_flat_state(state)
    values = {
        (*path, leaf): a
        for path, kernel in names(params).items()
        for leaf, a in kernel.items()
    }
    flat = [(path, variable.replace(values[path])) for path, variable in flat]
    cell = nnx.merge(graph, nnx.from_flat_state(flat))
    first = tuple(jnp.asarray(field) for field in carry)
    first = first[::-1] if flip else first[0]
    rnn = nnx.RNN(cell, time_major=True, return_carry=True)
    last, ys = rnn(xs, initial_carry=first)
    return (tuple(last)[::-1] if flip else (last,)), ys


def _lstm(params):
    return {
        ("dense_i",): {"kernel": params["kernel"]},
        ("dense_h",): {
            "kernel": params["recurrent_kernel"],
            "bias": params["bias"],
        },
    }


def _elman(params):
    return {
        ("dense_i",): {"kernel": params["kernel"], "bias": params["bias"]},
        ("dense_h",): {"kernel": params["recurrent_kernel"]},
    }


LAYERS = {
    "lstm": lambda *args: _run(nnx.OptimizedLSTMCell, _lstm, *args, flip=True),
    "elman": lambda *args: _run(nnx.SimpleCell, _elman, *args),
}
