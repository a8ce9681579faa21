# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From `lax.scan` to `scanrnn.scan`
#
# You write one time step as ordinary JAX. `jax.lax.scan` runs it step by step,
# exactly as it is written. `scanrnn.scan` has the same signature and gives the same
# results, but first it reads the step and *plans* it: what needs no carry runs before
# the loop, over all steps at once; what feeds only the outputs runs after it; and in
# the backward pass every weight gradient becomes one matrix product after the loop.
#
# On two CPU cores this notebook runs in about ten seconds.

# %%
import os
import statistics
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import scanrnn

# Page faults of large temporaries cost more than some of the arithmetic; this call
# makes the allocator keep its memory. It helps every contender below alike.
scanrnn.tune_allocator()

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
T, B, D, H = (16, 2, 8, 8) if FAST else (512, 4, 128, 128)

# %% [markdown]
# ## The step
#
# An LSTM with layer norm, written for the reader and not for the machine: the input
# and the carry are concatenated, one product makes all the gates, the gates are split.
# No library has this exact cell as a fast built-in.


# %%
def layer_norm(u):
    mean = u.mean(axis=-1, keepdims=True)
    var = ((u - mean) ** 2).mean(axis=-1, keepdims=True)
    return (u - mean) / jnp.sqrt(var + 1e-5)


def step(params, carry, x):
    h, c = carry
    z = jnp.concatenate([x, h], axis=-1) @ params["kernel"] + params["bias"]
    i, f, g, o = jnp.split(z, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(layer_norm(c) * params["gain"])
    return (h, c), h


rng = np.random.default_rng(0)
params = {
    "kernel": rng.uniform(-1, 1, (D + H, 4 * H)).astype(np.float32) / np.sqrt(H),
    "bias": np.zeros(4 * H, np.float32),
    "gain": np.full(H, 0.5, np.float32),
}
xs = rng.standard_normal((T, B, D), np.float32)
target = rng.standard_normal((T, B, H), np.float32)
init = (jnp.zeros((B, H)), jnp.zeros((B, H)))

# %% [markdown]
# ## The drop-in
#
# The only difference is the name of the function.


# %%
def loss(scan, params):
    _, ys = scan(lambda carry, x: step(params, carry, x), init, xs)
    return jnp.mean((ys - target) ** 2)


def train_step(scan):
    """One forward, backward and update, compiled."""

    @jax.jit
    def update(params):
        value, grads = jax.value_and_grad(lambda p: loss(scan, p))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return update


SCANS = {"lax.scan": jax.lax.scan, "scanrnn.scan": scanrnn.scan}
updates = {name: train_step(scan) for name, scan in SCANS.items()}

# %% [markdown]
# Same loss, same gradients, up to the rounding of a different order of additions:

# %%
results = {name: update(params) for name, update in updates.items()}
for name, (_, value) in results.items():
    print(f"{name:>14}: loss {value:.6f}")

plain, planned = (updated for updated, _ in results.values())
for name in params:
    np.testing.assert_allclose(planned[name], plain[name], rtol=1e-4, atol=1e-6)

# %% [markdown]
# ## The plan
#
# The plan is a value that can be printed. It lists every matrix product with its
# sizes and how often it runs, what was moved out of the loop, what stayed and why.

# %%
plan = scanrnn.plan(lambda carry, x: step(params, carry, x), init, xs)
print(plan)

# %% [markdown]
# ## The time saved, on this machine
#
# Both take turns in one process, so that whatever the machine does to one it does to
# the other; the median is kept.


# %%
def timed(update):
    begin = time.perf_counter()
    jax.block_until_ready(update(params))
    return 1e3 * (time.perf_counter() - begin)


rounds = 3 if FAST else 25
times = {name: [] for name in updates}
for _ in range(rounds):
    for name, update in updates.items():
        times[name].append(timed(update))

medians = {name: statistics.median(values) for name, values in times.items()}
saved = medians["lax.scan"] / medians["scanrnn.scan"]
print(f"a training step is {saved:.1f} times as fast as with lax.scan")

# %%
figure, axis = plt.subplots(figsize=(7, 2.2))
bars = axis.barh(list(medians), list(medians.values()), color=["#999999", "#3b7dd8"])
axis.bar_label(bars, fmt=" %.1f ms", padding=2)
axis.set_xlabel(f"one training step, ms (T={T}, B={B}, D={D}, H={H})")
axis.margins(x=0.15)
axis.invert_yaxis()
figure.tight_layout()
plt.show()

# %% [markdown]
# The gain depends on the shape: it is largest for long sequences in small batches,
# where a weight gradient inside the loop costs the most. Change `T, B, D, H` above and
# run again.
#
# ## Where to go from here
#
# - `scanrnn.cells` has the usual cells, with layer norm, multiplicative integration
#   and residual connections as options, as pure `step(params, carry, x)` functions.
# - `scanrnn.nnx` has them as Flax layers.
# - `python -m benchmarks.compare --help` measures any cell and shape against
#   `lax.scan` and other libraries.
