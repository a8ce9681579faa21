"""Generalised advantage estimation as in JAX agents: a loop from the last step back."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.programs._base import Program, normal

GAMMA, LAMBDA = 0.99, 0.95


def _apply(params, inputs):
    observations, rewards, dones = inputs
    hidden = jnp.tanh(observations @ params["w"])
    values = hidden @ params["v"]

    def step(carry, transition):
        advantage, next_value = carry
        value, reward, done = transition
        delta = reward + GAMMA * next_value * (1 - done) - value
        advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
        return (advantage, value), advantage

    first = jnp.zeros_like(values[-1]), values[-1]
    xs = values[:-1], rewards, dones.astype(jnp.float32)
    return lax.scan(step, first, xs, reverse=True, unroll=16)[1]


def advantages(T=128, B=2048, D=16, H=64):
    """Advantages over `T` steps of `B` environments."""
    params = {"w": normal(D, H, scale=0.2), "v": normal(H, scale=0.1)}
    dones = np.random.default_rng(0).random((T, B)) < 0.02
    inputs = normal(T + 1, B, D), normal(T, B), dones
    return Program(f"T={T} B={B} D={D} H={H}", params, inputs, _apply)


PROGRAMS = {"advantage estimation": advantages}
