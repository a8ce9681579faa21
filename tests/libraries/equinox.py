"""Equinox: a cell takes one example and one step."""

import equinox as eqx
import jax
import jax.numpy as jnp

from scanrnn import cells, interop
from tests.libraries import weights


def _run(make, ours, params, xs, carry):
    cell = make(xs.shape[-1], carry[0].shape[-1], key=jax.random.key(0))
    (names,) = interop.to_equinox(weights(ours, params))
    for theirs, value in names.items():
        cell = eqx.tree_at(lambda c, name=theirs: getattr(c, name), cell, value)
    one = len(carry) == 1

    def step(carry, x):
        carry = jax.vmap(cell)(x, carry[0] if one else carry)
        carry = (carry,) if one else carry
        return carry, carry[0]

    return jax.lax.scan(step, tuple(jnp.asarray(field) for field in carry), xs)


LAYERS = {
    "lstm": lambda *args: _run(eqx.nn.LSTMCell, cells.lstm(), *args),
    "gru": lambda *args: _run(eqx.nn.GRUCell, cells.gru(), *args),
}
