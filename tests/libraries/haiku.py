"""Haiku: cores under `dynamic_unroll`."""

import haiku as hk
import jax.numpy as jnp

from tests.libraries import gates


def _run(make, names, params, xs, carry):
    def unroll(xs, state):
        return hk.dynamic_unroll(make(carry[0].shape[-1]), xs, state)

    apply = hk.without_apply_rng(hk.transform(unroll)).apply
    state = tuple(jnp.asarray(field) for field in carry)
    many = len(state) > 1
    ys, last = apply(names(params), xs, hk.LSTMState(*state) if many else state[0])
    return tuple(last) if many else (last,), ys


def _lstm(params):
    """One matrix over [x, h], gates i, g, f, o, and one added to f in every step."""
    order = (0, 2, 1, 3)
    joint = jnp.concatenate([params["kernel"], params["recurrent_kernel"]])
    one = jnp.repeat(jnp.array([0.0, 0.0, 1.0, 0.0]), joint.shape[-1] // 4)
    bias = gates(params["bias"], order) - one
    return {"lstm/linear": {"w": gates(joint, order), "b": bias}}


def _gru(params):
    """Gates z, r, a: the update gate first."""
    order = (1, 0, 2)
    names = {"w_i": "kernel", "w_h": "recurrent_kernel", "b": "bias"}
    return {"gru": {k: gates(params[ours], order) for k, ours in names.items()}}


def _elman(params):
    return {
        "vanilla_rnn/linear": {"w": params["kernel"], "b": params["bias"]},
        "vanilla_rnn/linear_1": {
            "w": params["recurrent_kernel"],
            "b": jnp.zeros_like(params["bias"]),
        },
    }


LAYERS = {
    "lstm": lambda *args: _run(hk.LSTM, _lstm, *args),
    "gru-haiku": lambda *args: _run(hk.GRU, _gru, *args),
    "elman_relu": lambda *args: _run(hk.VanillaRNN, _elman, *args),
}
