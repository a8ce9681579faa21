"""A recurrent policy: episodes end within a sequence, and the step resets its carry.

There are three forms of it: as RL users write it with `linen.scan`, the same function
accelerated, and with our layer, whose `resets` say where an episode begins.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import scanrnn
from benchmarks.programs._base import Program, normal

T, B, D, H, ACTIONS = 128, 16, 32, 128, 6


class Memory(nn.Module):
    """A GRU over time that resets its carry where an episode begins."""

    @functools.partial(
        nn.scan, variable_broadcast="params", split_rngs={"params": False}
    )
    @nn.compact
    def __call__(self, carry, x):
        features, begins = x
        carry = jnp.where(begins[:, None], jnp.zeros_like(carry), carry)
        return nn.GRUCell(H)(carry, features)


class Layer(nn.Module):
    """The same GRU, by our layer."""

    @nn.compact
    def __call__(self, carry, x):
        features, begins = x
        gru = scanrnn.linen.GRU(H, time_major=True, return_carry=True)
        carry = scanrnn.cells.GRUCarry(carry)
        return gru(features, initial_carry=carry, resets=begins)


class ActorCritic(nn.Module):
    """Embeds observations, runs the GRU, and gives logits and a value."""

    make_memory: Callable[..., nn.Module] = Memory

    @nn.compact
    def __call__(self, observations, begins):
        embedded = nn.relu(nn.Dense(H)(observations))
        carry = jnp.zeros((observations.shape[1], H))
        memory = self.make_memory(name="memory")
        _, memory = memory(carry, (embedded, begins))
        logits = nn.Dense(ACTIONS)(nn.relu(nn.Dense(H)(memory)))
        value = nn.Dense(1)(nn.relu(nn.Dense(H)(memory)))
        return jnp.concatenate([logits, value], axis=-1)


def _actor_critic():
    model = ActorCritic()
    begins = np.random.default_rng(0).random((T, B)) < 0.03
    inputs = normal(T, B, D), begins
    return Program(
        sizes=f"T={T} B={B} D={D} H={H}",
        params=model.init(jax.random.key(0), *inputs),
        inputs=inputs,
        apply=lambda params, inputs: model.apply(params, *inputs),
        layer=_with_layer,
    )


def _with_layer(variables, inputs):
    """The policy with our layer and with the weights of Flax's cell."""
    cell = variables["params"]["memory"]["GRUCell_0"]
    sides = {side: [cell[side + gate] for gate in "rzn"] for side in "ih"}
    gru = {
        "kernel": jnp.concatenate([d["kernel"] for d in sides["i"]], axis=1),
        "recurrent_kernel": jnp.concatenate([d["kernel"] for d in sides["h"]], axis=1),
        "bias": jnp.concatenate([d["bias"] for d in sides["i"]]),
        "recurrent_bias": cell["hn"]["bias"],
    }
    params = variables["params"] | {"memory": {"GRU_0": {"layers_0": gru}}}
    return ActorCritic(Layer).apply({"params": params}, *inputs)


PROGRAMS = {"actor and critic with resets, Flax Linen": _actor_critic}
