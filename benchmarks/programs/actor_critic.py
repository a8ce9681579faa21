"""A recurrent policy: episodes end within a sequence, and the step resets its carry."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs._base import Program, normal

T, B, D, H, ACTIONS = 128, 16, 32, 128, 6


class Memory(nn.Module):
    """A GRU over time that forgets where an episode begins."""

    @functools.partial(
        nn.scan, variable_broadcast="params", split_rngs={"params": False}
    )
    @nn.compact
    def __call__(self, carry, x):
        features, begins = x
        carry = jnp.where(begins[:, None], jnp.zeros_like(carry), carry)
        return nn.GRUCell(H)(carry, features)


class ActorCritic(nn.Module):
    """Embeds observations, remembers, and gives logits and a value."""

    @nn.compact
    def __call__(self, observations, begins):
        embedded = nn.relu(nn.Dense(H)(observations))
        carry = jnp.zeros((observations.shape[1], H))
        _, memory = Memory()(carry, (embedded, begins))
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
    )


PROGRAMS = {"actor and critic with resets, Flax Linen": _actor_critic}
