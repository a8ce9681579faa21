"""Dreamer's world model: a recurrent state space, reset where an episode begins."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.programs._base import Program, normal
from benchmarks.steps import layer_norm

MIXED = 0.01  # the share of uniform probabilities in each distribution


def _sample(key, logits):
    """A one-hot sample `[B, S, C]`, and the logarithms of the probabilities.

    The sample has the gradient of the probabilities.
    """
    classes = logits.shape[-1]
    probs = (1 - MIXED) * jax.nn.softmax(logits) + MIXED / classes
    logits = jnp.log(probs)
    sample = jax.nn.one_hot(jax.random.categorical(key, logits), classes)
    return sample + probs - lax.stop_gradient(probs), logits


def _apply(params, inputs, C):
    embeds, actions, begins, key = inputs
    (T, B), (H,) = begins.shape, params["initial"].shape
    S = params["prior_out"].shape[1] // C

    def head(name, *features):
        hidden = layer_norm(jnp.concatenate(features, -1) @ params[f"{name}_in"])
        return (jax.nn.silu(hidden) @ params[f"{name}_out"]).reshape(B, S, C)

    def step(carry, inputs):
        deter, stoch = carry
        embed, action, begins, key = inputs
        goes_on = (1.0 - begins)[:, None]
        deter = goes_on * deter + (1 - goes_on) * jnp.tanh(params["initial"])
        x = goes_on * jnp.concatenate([stoch.reshape(B, S * C), action], -1)
        x = jax.nn.silu(layer_norm(x @ params["img_in"]))
        gates = layer_norm(jnp.concatenate([x, deter], -1) @ params["gru"])
        reset, new, update = jnp.split(gates, 3, axis=-1)
        update = jax.nn.sigmoid(update - 1)
        new = jnp.tanh(jax.nn.sigmoid(reset) * new)
        deter = update * new + (1 - update) * deter
        prior = head("prior", deter)
        stoch, posterior = _sample(key, head("posterior", deter, embed))
        return (deter, stoch), (deter, stoch, prior, posterior)

    first = jnp.zeros((B, H)), jnp.zeros((B, S, C))
    xs = embeds, actions, begins.astype(jnp.float32), jax.random.split(key, T)
    _, ys = lax.scan(step, first, xs)
    return jnp.concatenate([y.reshape(T, B, -1) for y in ys], axis=-1)


def rssm(T=64, B=16, H=512, S=32, C=32, E=512, A=6):
    """`S` variables of `C` classes and `H` features; inputs are embeddings, actions."""
    shapes = {
        "img_in": (S * C + A, H),
        "gru": (2 * H, 3 * H),
        "prior_in": (H, H),
        "prior_out": (H, S * C),
        "posterior_in": (H + E, H),
        "posterior_out": (H, S * C),
    }
    params = {
        name: normal(*shape, scale=shape[0] ** -0.5) for name, shape in shapes.items()
    }
    params |= {"initial": np.zeros(H, np.float32)}
    begins = np.random.default_rng(0).random((T, B)) < 0.03
    inputs = normal(T, B, E), normal(T, B, A, seed=1), begins, jax.random.key(0)
    sizes = f"T={T} B={B} H={H}, {S} times {C} classes"
    return Program(sizes, params, inputs, functools.partial(_apply, C=C))


PROGRAMS = {"recurrent state space with resets (Dreamer)": rssm}
