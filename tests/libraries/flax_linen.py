"""Flax Linen: `RNN` over its cells."""

import flax.linen as nn
import jax.numpy as jnp

from tests.libraries import split


def _run(make, names, params, xs, carry, flip=False):
    rnn = nn.RNN(make(carry[0].shape[-1]), time_major=True, return_carry=True)
    first = tuple(jnp.asarray(field) for field in carry)
    first = first[::-1] if flip else first[0]
    variables = {"params": {"cell": names(params)}}
    last, ys = rnn.apply(variables, xs, initial_carry=first)
    return (last[::-1] if flip else (last,)), ys


def _sides(params, letters):
    """A Dense layer for each gate and side."""
    x = split(params["kernel"], len(letters))
    h = split(params["recurrent_kernel"], len(letters))
    b = split(params["bias"], len(letters))
    return {gate: (x[k], h[k], b[k]) for k, gate in enumerate(letters)}


def _lstm(params):
    cell = {}
    for gate, (x, h, b) in _sides(params, "ifgo").items():
        cell[f"i{gate}"] = {"kernel": x}
        cell[f"h{gate}"] = {"kernel": h, "bias": b}
    return cell


def _gru(params):
    cell = {}
    for gate, (x, h, b) in _sides(params, "rzn").items():
        cell[f"i{gate}"] = {"kernel": x, "bias": b}
        cell[f"h{gate}"] = {"kernel": h}
    cell["hn"]["bias"] = params["recurrent_bias"]
    return cell


def _elman(params):
    return {
        "i": {"kernel": params["kernel"], "bias": params["bias"]},
        "h": {"kernel": params["recurrent_kernel"]},
    }


LAYERS = {
    "lstm": lambda *args: _run(nn.LSTMCell, _lstm, *args, flip=True),
    "gru": lambda *args: _run(nn.GRUCell, _gru, *args),
    "elman": lambda *args: _run(nn.SimpleCell, _elman, *args),
}
