"""A transformer whose layers are one loop, which scans over their weights."""

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs._base import Program, normal
from benchmarks.steps import layer_norm

LAYERS, B, S, D, HEADS = 6, 4, 64, 128, 4


def _attention(layer, x):
    q, k, v = jnp.split(x @ layer["qkv"], 3, axis=-1)
    q, k, v = (a.reshape(B, S, HEADS, D // HEADS) for a in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v).reshape(B, S, D) @ layer["out"]


def _layer(x, layer):
    x = x + _attention(layer, layer["scale"] * layer_norm(x))
    return x + jax.nn.gelu(layer_norm(x) @ layer["up"]) @ layer["down"], None


def _apply(params, x):
    return layer_norm(lax.scan(_layer, x, params)[0])


def _layers():
    params = {
        "scale": 1 + normal(LAYERS, D, scale=0.1),
        "qkv": normal(LAYERS, D, 3 * D, scale=0.05),
        "out": normal(LAYERS, D, D, scale=0.05),
        "up": normal(LAYERS, D, 4 * D, scale=0.05),
        "down": normal(LAYERS, 4 * D, D, scale=0.05),
    }
    sizes = f"{LAYERS} layers, B={B}, {S} tokens, D={D}"
    return Program(sizes, params, normal(B, S, D), _apply)


PROGRAMS = {"layers of a transformer": _layers}
