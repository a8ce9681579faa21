"""How far gradients in bfloat16 are from those in float32, as a sequence grows.

In this LSTM everything is bfloat16: parameters, inputs, carries and all intermediate
values. The reference is the same program on the same numbers in float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import scanrnn
from benchmarks.gate import mean_squared
from benchmarks.programs._base import normal
from benchmarks.steps import lstm_pointwise
from benchmarks.tables import table

B, H = 32, 64
STEPS = (50, 200, 800)
SCANS = {"scanrnn": scanrnn.scan, "lax_scan": lax.scan}
# Gradients in the order of the table; that of the carry is of `h` and `c` together.
NAMES = {"bias": "b", "kernel": "wx", "recurrent kernel": "wh", "initial carry": "hc"}

ABOUT = (
    f"An LSTM (B={B}, D=H={H}) of which everything is bfloat16: relative error (2-norm)"
    " of its gradients against the same program in float32."
)


def _step(params, carry, x):
    h, c = carry
    z = x @ params["wx"] + h @ params["wh"] + params["b"]
    o, c = lstm_pointwise(z, c)
    h = o * jnp.tanh(c)
    return (h, c), h


def _loss(params, xs, target, scan):
    def step(carry, x):
        return _step(params, carry, x)

    _, ys = scan(step, params["hc"], xs)
    return mean_squared(ys.astype(jnp.float32), target)


def gradient_errors(T: int, scan, sizes=(B, H)) -> dict[str, float]:
    """Relative errors (2-norm) of the gradients of a sequence of T steps, by name."""
    batch, features = sizes
    scale = features**-0.5
    params = {
        "wx": normal(features, 4 * features, scale=scale),
        "wh": normal(features, 4 * features, scale=scale, seed=1),
        "b": normal(4 * features, scale=0.1),
        "hc": (normal(batch, features), normal(batch, features, seed=1)),
    }
    args = jax.tree.map(jnp.bfloat16, (params, normal(T, batch, features)))
    target = 0.5 * normal(T, batch, features, seed=1)
    gradients = jax.jit(jax.grad(_loss), static_argnums=3)
    half = gradients(*args, target, scan)
    full = gradients(*jax.tree.map(jnp.float32, args), target, lax.scan)
    return {name: _error(half[key], full[key]) for name, key in NAMES.items()}


def _error(half, full) -> float:
    got, want = (
        np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(t)])
        for t in (half, full)
    )
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def record(T: int) -> dict:
    """The record for T steps, which the results file keeps."""
    contenders = {n: {"errors": gradient_errors(T, scan)} for n, scan in SCANS.items()}
    case = {"section": "precision", "case": {"T": T}, "disturbance": 0.0}
    return case | {"contenders": contenders}


def section(records: list[dict]) -> list[str]:
    """The section in Markdown; empty if nothing was measured."""
    chosen = [r for r in records if r["section"] == "precision"]
    if not chosen:
        return []
    heads = ["T", *(f"{name}: {who}" for name in NAMES for who in SCANS)]
    rows = []
    for record in chosen:
        errors = {n: entry["errors"] for n, entry in record["contenders"].items()}
        cells = [f"{errors[who][name]:.2%}" for name in NAMES for who in SCANS]
        rows.append([str(record["case"]["T"]), *cells])
    return ["## Precision", ABOUT, table(heads, rows)]
