"""Estimates of returns as in JAX agents: loops from the last step back.

The loops are those of PureJaxRL, Brax and rlax. A small network gives the values.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.programs._base import Program, normal

GAMMA, LAMBDA = 0.99, 0.95


def purejaxrl(values, rewards, dones):
    """Generalised advantage estimation; the carry holds the value of the next state."""

    def step(carry, transition):
        advantage, next_value = carry
        value, reward, done = transition
        delta = reward + GAMMA * next_value * (1 - done) - value
        advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
        return (advantage, value), advantage

    first = jnp.zeros_like(values[-1]), values[-1]
    xs = values[:-1], rewards, dones.astype(jnp.float32)
    return lax.scan(step, first, xs, reverse=True, unroll=16)[1]


def brax(values, rewards, dones):
    """The same estimates; the carry holds lambda, and episodes may be cut off."""
    ends = dones.astype(jnp.float32)
    mask = jnp.ones_like(ends).at[-1].set(0.0)
    deltas = (rewards + GAMMA * (1 - ends) * values[1:] - values[:-1]) * mask

    def step(carry, target):
        lambda_, acc = carry
        mask, delta, end = target
        acc = delta + GAMMA * (1 - end) * mask * lambda_ * acc
        return (lambda_, acc), acc

    first = jnp.asarray(LAMBDA), jnp.zeros_like(values[-1])
    return lax.scan(step, first, (mask, deltas, ends), reverse=True)[1]


def _each(estimate):
    """Apply an estimate of one sequence to each sequence of a batch."""
    return jax.vmap(estimate, in_axes=1, out_axes=1)


@_each
def _lambda_returns(values, rewards, dones):
    """rlax's lambda-returns of one sequence."""
    discounts = GAMMA * (1 - dones.astype(jnp.float32))

    def step(acc, x):
        reward, discount, value, lambda_ = x
        acc = reward + discount * ((1 - lambda_) * value + lambda_ * acc)
        return acc, acc

    xs = rewards, discounts, values[1:], jnp.full_like(rewards, LAMBDA)
    return lax.scan(step, values[-1], xs, reverse=True)[1]


@_each
def _v_trace(values, rewards, dones):
    """rlax's V-trace errors of one sequence; ratios of policies come from rewards."""
    discounts = GAMMA * (1 - dones.astype(jnp.float32))
    ratios = jnp.minimum(1.0, jnp.exp(0.1 * rewards))
    errors = ratios * (rewards + discounts * values[1:] - values[:-1])

    def step(acc, x):
        error, discount, c = x
        acc = error + discount * c * acc
        return acc, acc

    xs = errors, discounts, LAMBDA * ratios
    return lax.scan(step, jnp.zeros(()), xs, reverse=True)[1]


def _apply(estimate, params, inputs):
    observations, rewards, dones = inputs
    hidden = jnp.tanh(observations @ params["w"])
    return estimate(hidden @ params["v"], rewards, dones)


def advantages(T=128, B=2048, D=16, H=64, estimate=purejaxrl):
    """Estimates over `T` steps of `B` environments."""
    params = {"w": normal(D, H, scale=0.2), "v": normal(H, scale=0.1)}
    dones = np.random.default_rng(0).random((T, B)) < 0.02
    inputs = normal(T + 1, B, D), normal(T, B), dones
    apply = functools.partial(_apply, estimate)
    return Program(f"T={T} B={B} D={D} H={H}", params, inputs, apply)


PROGRAMS = {
    "advantage estimation": advantages,
    "advantage estimation (Brax)": functools.partial(advantages, estimate=brax),
    "lambda-returns": functools.partial(advantages, estimate=_lambda_returns),
    "V-trace": functools.partial(advantages, estimate=_v_trace),
}
