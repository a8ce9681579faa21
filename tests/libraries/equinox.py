"""Equinox: a cell takes one example and one step."""

import equinox as eqx
import jax
import jax.numpy as jnp


def _run(make, names, params, xs, carry):
    cell = make(xs.shape[-1], carry[0].shape[-1], key=jax.random.key(0))
    for theirs, value in names(params).items():
        cell = eqx.tree_at(lambda c, name=theirs: getattr(c, name), cell, value)
    one = len(carry) == 1

    def step(carry, x):
        carry = jax.vmap(cell)(x, carry[0] if one else carry)
        carry = (carry,) if one else carry
        return carry, carry[0]

    return jax.lax.scan(step, tuple(jnp.asarray(field) for field in carry), xs)


def _names(params):
    names = {
        "weight_ih": params["kernel"].T,
        "weight_hh": params["recurrent_kernel"].T,
        "bias": params["bias"],
    }
    if "recurrent_bias" in params:
        names["bias_n"] = params["recurrent_bias"]
    return names


LAYERS = {
    "lstm": lambda *args: _run(eqx.nn.LSTMCell, _names, *args),
    "gru": lambda *args: _run(eqx.nn.GRUCell, _names, *args),
}
