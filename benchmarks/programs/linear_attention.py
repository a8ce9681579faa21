"""States that are matrices: RWKV's by steps, and a gated delta rule's by chunks."""

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.programs._base import Program, normal


def _rwkv(params, inputs):
    """RWKV-6: a state `[B, H, N, N]`; a step reads one vector of it for each head."""
    bonus = params["bonus"][:, :, None]

    def step(state, inputs):
        r, k, v, w = inputs
        kv = jnp.einsum("bhi,bhj->bhij", k, v)
        y = jnp.einsum("bhi,bhij->bhj", r, state + bonus * kv)
        return w[..., None] * state + kv, y

    decay = jnp.exp(-jnp.exp(params["w"]))
    xs = params["r"], params["k"], params["v"], decay
    _, B, H, N = params["r"].shape
    _, ys = lax.scan(step, jnp.zeros((B, H, N, N)), xs)
    return ys.reshape(-1, B, H * N)


def rwkv(T=512, B=8, H=16, N=64):
    """The loop alone: projections of inputs are params here, so they get gradients."""
    size = T, B, H, N
    params = {
        "r": normal(*size),
        "k": normal(*size, scale=0.3, seed=1),
        "v": normal(*size, seed=2),
        "w": normal(*size, seed=3) - 2,
        "bonus": normal(H, N, scale=0.5),
    }
    sizes = f"T={T} B={B}, {H} heads of {N}"
    return Program(sizes, params, (), _rwkv)


def _delta_rule(params, inputs):
    """Gated DeltaNet: each chunk of steps reads and corrects a state `[S, K, K]`.

    Operands are `[T, S, C, K]`: chunks, states, steps in a chunk, features. `w` reads
    what the values of the chunk replace, and `g` are sums of logarithms of gates.
    """
    C = params["q"].shape[-2]
    lower = jnp.tril(jnp.ones((C, C), bool))

    def step(state, inputs):
        q, k, v, w, g = inputs
        between = g[..., :, None] - g[..., None, :]
        decay = jnp.exp(jnp.where(lower, between, -jnp.inf))
        attention = q @ k.swapaxes(-1, -2) * decay
        new = v - w @ state
        y = (q * jnp.exp(g)[..., None]) @ state + attention @ new
        last = g[:, -1, None]
        k = k * jnp.exp(last - g)[..., None]
        state = state * jnp.exp(last)[..., None] + k.swapaxes(-1, -2) @ new
        return state, y

    g = jnp.cumsum(jax.nn.log_sigmoid(params["g"]), axis=-1)
    xs = params["q"], params["k"], params["v"], params["w"], g
    state = jnp.zeros((*xs[0].shape[1:2], xs[1].shape[-1], xs[2].shape[-1]))
    return lax.scan(step, state, xs)[1]


def delta_rule(T=64, S=128, C=64, K=128):
    """The loop over chunks alone: what runs before it is given as params here."""
    size = T, S, C, K
    params = {
        name: normal(*size, scale=K**-0.5, seed=seed) for seed, name in enumerate("qkw")
    }
    params |= {"v": normal(*size, seed=3), "g": normal(T, S, C) + 3}
    sizes = f"T={T} chunks of {C}, {S} states of {K}x{K}"
    return Program(sizes, params, (), _delta_rule)


PROGRAMS = {"RWKV's state": rwkv, "chunks of a gated delta rule": delta_rule}
