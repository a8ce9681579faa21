"""Flax NNX: `RNN` over Flax's cells; its state is split off once."""

import jax.numpy as jnp
from flax import nnx

from benchmarks.programs._base import Program, normal

B, T, D, H = 16, 64, 128, 256


def _gru():
    rnn = nnx.RNN(nnx.GRUCell(D, H, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    graph, params, rest = nnx.split(rnn, nnx.Param, ...)

    def apply(params, x):
        # A given carry keeps NNX from drawing one from its random stream.
        carry = jnp.zeros((B, H))
        return nnx.merge(graph, params, rest)(x, initial_carry=carry)

    return Program(f"T={T} B={B} D={D} H={H}", params, normal(B, T, D), apply)


PROGRAMS = {"GRU, Flax NNX": _gru}
