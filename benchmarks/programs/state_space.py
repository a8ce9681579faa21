"""Mamba's selective scan, as its ports to JAX write it: one step at a time."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.programs._base import Program, normal


def _selective_scan(params, inputs):
    """The state `[B, D, N]` is N times as large as the output of a step."""
    A = -jnp.exp(params["A_log"])

    def step(h, inputs):
        u, dt, b, c = inputs
        dA = jnp.exp(dt[:, :, None] * A)
        h = dA * h + (dt * u)[:, :, None] * b[:, None, :]
        return h, jnp.einsum("bdn,bn->bd", h, c)

    u = params["u"]
    xs = u, jax.nn.softplus(params["dt"]), params["B"], params["C"]
    _, ys = lax.scan(step, jnp.zeros((u.shape[1], *A.shape)), xs)
    return ys + params["D"] * u


def selective_scan(T=512, B=8, D=1024, N=16):
    """The loop alone: projections of inputs are params here, so they get gradients."""
    params = {
        "u": normal(T, B, D),
        "dt": normal(T, B, D, scale=0.5, seed=1) - 4,
        "B": normal(T, B, N, seed=2),
        "C": normal(T, B, N, seed=3),
        "A_log": np.log(np.tile(np.arange(1, N + 1, dtype=np.float32), (D, 1))),
        "D": np.ones(D, np.float32),
    }
    return Program(f"T={T} B={B} D={D} N={N}", params, (), _selective_scan)


PROGRAMS = {"selective scan (Mamba)": selective_scan}
