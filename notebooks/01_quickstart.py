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
# **Question: what changes if you write `scanrnn.scan` in place of `jax.lax.scan`?**
#
# You write one time step as ordinary JAX. `jax.lax.scan` runs it step by step, as it is
# written. `scanrnn.scan` has the same signature and gives the same results, but first
# it reads the step and *plans* it:
#
# - operations that do not need the carry run before the loop, for all steps at once;
# - operations on which only the outputs depend run after the loop;
# - in the backward pass, each weight gradient is one matrix product after the loop.
#
# On two CPU cores this notebook runs in a few seconds.

# %%
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import scanrnn

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
T, B, D, H = (16, 4, 32, 32) if FAST else (512, 2, 128, 128)

# Colours of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## The step
#
# This is an LSTM with layer norm, written for the reader and not for the machine: the
# input and the carry are concatenated, one product computes all gates, and the gates
# are split. No library has this exact cell as a fast built-in.


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
    """One forward pass, backward pass and update, compiled."""

    def update(params):
        value, grads = jax.value_and_grad(lambda p: loss(scan, p))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return jax.jit(update).lower(params).compile()


SCANS = {"lax.scan": jax.lax.scan, "scanrnn.scan": scanrnn.scan}
updates = {name: train_step(scan) for name, scan in SCANS.items()}

# %% [markdown]
# The loss and the updated parameters are the same, up to rounding, because sums are
# computed in another order:

# %%
results = {name: update(params) for name, update in updates.items()}
for name, (_, value) in results.items():
    print(f"{name:>14}: loss {value:.6f}")

plain, planned = (updated for updated, _ in results.values())
for name in params:
    apart = np.abs(planned[name] - plain[name]).max()
    print(f"{name:>14}: largest difference {apart:.0e}")
    np.testing.assert_allclose(planned[name], plain[name], rtol=1e-4, atol=1e-6)

# %% [markdown]
# ## The plan
#
# The plan is a value. It lists every matrix product (GEMM) with its sizes and how often
# it runs, and says why no more products were moved. In the forward pass, M is the
# number of columns of the weights, N the number of rows of the data, and K the size
# that is summed over. In the backward pass there are two more products for each one:
# the gradient with respect to the input of the product (activation gradient), and with
# respect to the weights (weight gradient). `print(plan)` gives the same as text.

# %%
planned_step = scanrnn.plan(lambda carry, x: step(params, carry, x), init, xs)
planned_step

# %% [markdown]
# ## What changed
#
# Left: the arithmetic of matrix products that must wait for the step before, counted in
# the plan and in the step as `lax.scan` runs it. Right: the time of a training step
# relative to `lax.scan`, for an LSTM with three layer norms. These times are not from
# this run. They are from the committed benchmarks: medians of 30 rounds or more on a
# virtual machine whose speed varies. In each round every program runs in turn, so
# ratios are more exact than times; the report has their 95 % intervals. Each program is
# first checked against a float64 reference. PyTorch has no such cell, so its plain LSTM
# is shown for comparison.

# %%
as_it_is = scanrnn.plan(
    lambda carry, x: step(params, carry, x), init, xs, implementation="scan"
)


def in_loop(plan, phase):
    """Arithmetic of the GEMMs that each time step runs in the loop, in kFLOP."""
    rows = [row for row in plan.gemms if row.where == "loop" and row.phase == phase]
    return sum(row.flops for row in rows) / T / 1e3


# %%
PHASES = ("forward", "activation gradient", "weight gradient")
plans = {"lax.scan": as_it_is, "scanrnn.scan": planned_step}
waits = {name: [in_loop(plan, p) for p in PHASES] for name, plan in plans.items()}

repository = pathlib.Path(scanrnn.__file__).parents[1]
results = json.loads(
    (repository / "benchmarks/results/intel-xeon-amx-bf16-2-cores.json").read_text()
)
machine = results["machine_info"]
case = dict(cell="ln_lstm", T=512, B=2, D=128, H=128, dtype="float32")
(row,) = (
    row["contenders"]
    for row in results["rows"]
    if case.items() <= row.get("case", {}).items()
)
names = {
    "lax_scan": "lax.scan",
    "scanrnn": "scanrnn.scan",
    "torch_lstm": "plain LSTM,\nPyTorch",
}
ratios = {
    label: row[name]["train"]["median"] / row["lax_scan"]["train"]["median"]
    for name, label in names.items()
}

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
for (name, values), color, shift in zip(
    waits.items(), (GREY, BLUE), (-0.2, 0.2), strict=True
):
    places = np.arange(len(PHASES)) + shift
    bars = left.barh(places, values, 0.4, color=color, label=name)
    left.bar_label(bars, fmt="%.0f", padding=3)
left.set_yticks(range(len(PHASES)), PHASES)
left.invert_yaxis()
left.margins(x=0.15)
left.set_xlabel("kFLOP in the loop per time step (counted)")
left.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
bars = right.barh(list(ratios), list(ratios.values()), color=[GREY, BLUE, ORANGE])
right.bar_label(bars, fmt="%.2f", padding=3)
right.invert_yaxis()
right.margins(x=0.15)
right.set_xlabel(
    "relative time of a training step\n"
    f"(benchmark: Intel Xeon, {machine['cores']} cores)"
)
figure.tight_layout()
plt.show()

# %% [markdown]
# Memory changes, too. The compiler reports how much memory the compiled training step
# above needs besides its arguments and results:

# %%
temporaries = {
    name: update.memory_analysis().temp_size_in_bytes
    for name, update in updates.items()
}
for name, size in temporaries.items():
    print(f"{name:>14}: {size / 1e6:.2f} MB of temporary memory")

# %% [markdown]
# The next cell checks the claims of this notebook:

# %%
forward, backward, weights = waits["lax.scan"]
assert forward == backward == weights
assert waits["scanrnn.scan"] == [forward / 2, backward / 2, 0]
assert ratios["scanrnn.scan"] < 0.5
assert FAST or temporaries["scanrnn.scan"] < 0.5 * temporaries["lax.scan"]

# %% [markdown]
# ## What is surprising
#
# A large part of the work of `lax.scan` is the weight gradient. Each step of the
# backward pass computes a matrix as large as the weights and adds it to a sum of the
# same size, for a batch of only two. The plan stacks the small cotangents and
# multiplies once. So the gain is largest for long sequences in small batches, and the
# plan needs less memory, not more.
#
# ## Where to go from here
#
# - [What the planner does](02_what_the_planner_does.ipynb) takes the plan apart.
# - `scanrnn.cells` has the usual cells, with layer norm, multiplicative integration
#   and residual connections as options, as pure `step(params, carry, x)` functions.
# - `scanrnn.nnx` and `scanrnn.linen` have them as Flax layers.
# - `python -m benchmarks.compare --help` measures any cell and shape on your machine
#   against `lax.scan` and other libraries.
