"""LSTMs in plain JAX: dropout, `jax.checkpoint`, heads, and two layers in a step."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs._base import Program, normal
from benchmarks.steps import dot, lstm, lstm_pointwise

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


def _heads(heads=4):
    """Each head has a recurrent matrix of its own, and sees only its part of h."""

    def apply(params, xs):
        wx = dot(xs, params["wx"]) + params["b"]

        def step(carry, x):
            h, c = carry
            z = jnp.einsum("bnk,nkj->bnj", h, params["wh"]) + x
            o, c = lstm_pointwise(z, c)
            h = o * jnp.tanh(c)
            return (h, c), h.reshape(B, H)

        zeros = jnp.zeros((B, heads, H // heads))
        xs = wx.reshape(T, B, heads, -1)
        return lax.scan(step, (zeros, zeros), xs)[1]

    params = {
        "wx": normal(D, 4 * H, scale=0.05),
        "wh": normal(heads, H // heads, 4 * H // heads, scale=0.05),
        "b": normal(4 * H, scale=0.1),
    }
    return Program(SIZES, params, normal(T, B, D), apply)


def _stacked():
    """Both layers in one step: the second reads what the first has just computed."""

    def apply(params, xs):
        def step(carries, x):
            first, x = lstm(params["first"], carries[0], x)
            second, y = lstm(params["second"], carries[1], x)
            return (first, second), y

        zeros = jnp.zeros((B, H))
        return lax.scan(step, ((zeros, zeros),) * 2, xs)[1]

    second = {"w": normal(H + H, 4 * H, scale=0.05), "b": normal(4 * H, scale=0.1)}
    params = {"first": _params(), "second": second}
    return Program(SIZES, params, normal(T, B, D), apply)


PROGRAMS = {
    "LSTM with variational dropout": _dropout,
    "LSTM under jax.checkpoint": _checkpointed,
    "LSTM with 4 heads": _heads,
    "two LSTMs in one step": _stacked,
}
