"""LSTMs in plain JAX: one with recurrent dropout, and one under `jax.checkpoint`."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs._base import Program, normal
from benchmarks.steps import lstm

T, B, D, H = 64, 16, 128, 256
SIZES = f"T={T} B={B} D={D} H={H}"


def _params():
    return {"w": normal(D + H, 4 * H, scale=0.05), "b": normal(4 * H, scale=0.1)}


def _unrolled(step, xs):
    zeros = jnp.zeros((B, H))
    return lax.scan(step, (zeros, zeros), xs)[1]


def _dropout():
    """Recurrent dropout with one mask for all steps of a sequence."""

    def apply(params, inputs):
        xs, key = inputs
        at_inputs, at_carry = jax.random.split(key)
        keep_x = jax.random.bernoulli(at_inputs, 0.8, (B, D)) / 0.8
        keep_h = jax.random.bernoulli(at_carry, 0.8, (B, H)) / 0.8

        def step(carry, x):
            h, c = carry
            return lstm(params, (h * keep_h, c), x * keep_x)

        return _unrolled(step, xs)

    return Program(SIZES, _params(), (normal(T, B, D), jax.random.key(0)), apply)


def _checkpointed():
    """The step is recomputed in the backward pass."""

    def apply(params, xs):
        return _unrolled(jax.checkpoint(functools.partial(lstm, params)), xs)

    return Program(SIZES, _params(), normal(T, B, D), apply)


PROGRAMS = {
    "LSTM with variational dropout": _dropout,
    "LSTM under jax.checkpoint": _checkpointed,
}
