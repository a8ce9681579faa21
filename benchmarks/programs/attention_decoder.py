"""A decoder that attends to a sentence at every step (Bahdanau et al., 2015)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.programs._base import Program, lengths, normal
from benchmarks.steps import lstm


def _apply(params, inputs):
    words, memory, counts = inputs
    (_, B), (_, S, H) = words.shape, memory.shape
    mask = jnp.arange(S) < counts[:, None]
    keys = memory @ params["key"]

    def step(carry, word):
        state, context = carry
        x = jnp.concatenate([params["embedding"][word], context], axis=-1)
        state, h = lstm(params["lstm"], state, x)
        scores = jnp.tanh(keys + (h @ params["query"])[:, None]) @ params["score"]
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        context = jnp.einsum("bs,bsh->bh", weights, memory)
        both = jnp.tanh(jnp.concatenate([h, context], axis=-1) @ params["both"])
        return (state, context), both @ params["out"]

    zeros = jnp.zeros((B, H))
    return lax.scan(step, ((zeros, zeros), zeros), words)[1]


def decoder(T=32, B=32, S=48, H=256, V=1024):
    """Reads sentences of up to `S` words; gives logits over `V` words for `T` steps."""
    params = {
        "embedding": normal(V, H, scale=0.1),
        "lstm": {"w": normal(3 * H, 4 * H, scale=0.03), "b": np.zeros(4 * H, "f")},
        "key": normal(H, H, scale=0.05),
        "query": normal(H, H, scale=0.05, seed=1),
        "score": normal(H, scale=0.1),
        "both": normal(2 * H, H, scale=0.05),
        "out": normal(H, V, scale=0.05),
    }
    words = np.random.default_rng(0).integers(0, V, (T, B), np.int32)
    inputs = words, normal(B, S, H), lengths(B, S)
    return Program(f"T={T} B={B} H={H}, {S} to {V} words", params, inputs, _apply)


PROGRAMS = {"attention decoder": decoder}
