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
# # Write a cell
#
# "How do I speed up the loop of a customized RNN?" was asked in PyTorch's forum in
# 2017, and the answer was: expect to lose two to five times the speed of the vendor's
# LSTM as soon as you want layer normalisation, multiplicative integration, or residual
# connections. This notebook wants all three at once. It invents the cell, checks its
# gradient, reads its plan, trains it against a plain LSTM on real text, and measures
# what it costs beside the vendor's.
#
# On two CPU cores it runs in under a minute.

# %%
import dataclasses
import functools
import os
import statistics
import time
from pydoc_data.topics import topics
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import scanrnn

scanrnn.tune_allocator()  # as in the first notebook

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
T, B, H = (12, 4, 16) if FAST else (64, 16, 128)
STEPS = 6 if FAST else 400

# Colours of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## The cell
#
# A cell is three pure functions and no arrays: how the parameters start, what is
# carried before the first step, and the step. Nothing here is arranged for speed: the
# step reads as its equations do.
#
# $$z = \alpha \odot a \odot b + \beta_1 \odot b + \beta_2 \odot a + s,\quad
# a = LN(W x_t),\quad b = LN(U h_{t-1})$$
# $$c_t = \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g),\quad
# h_t = \sigma(o) \odot \tanh(LN(c_t)),\quad y_t = x_t + h_t$$
#
# where i, f, g and o are the four quarters of z.


# %%
class Carry(NamedTuple):
    h: jax.Array
    c: jax.Array


def layer_norm(u, gain):
    centred = u - u.mean(axis=-1, keepdims=True)
    return gain * centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


@dataclasses.dataclass(frozen=True)
class MyCell(scanrnn.cells.Cell):
    def init(self, key, in_features, hidden_features, dtype=jnp.float32):
        D, H = in_features, hidden_features
        keys = jax.random.split(key)
        uniform = functools.partial(
            jax.random.uniform, dtype=dtype, minval=-(H**-0.5), maxval=H**-0.5
        )
        # Small gains: gates that a norm makes large start shut or open, and learn late.
        vectors = {"gain_x": 0.3, "gain_h": 0.3, "alpha": 1, "beta1": 0.5, "beta2": 0.5}
        return {
            "W": uniform(keys[0], (D, 4 * H)),
            "U": uniform(keys[1], (H, 4 * H)),
            "bias": jnp.zeros(4 * H, dtype).at[H : 2 * H].set(1),  # do not forget
            "gain_c": jnp.ones(H, dtype),
            "bias_c": jnp.zeros(H, dtype),
            **{name: jnp.full(4 * H, start, dtype) for name, start in vectors.items()},
        }

    def initial_carry(self, params, x, dtype=None):
        zeros = jnp.zeros((*x.shape[:-1], params["U"].shape[0]), dtype or x.dtype)
        return Carry(zeros, zeros)

    def step(self, params, carry, x):
        a = layer_norm(x @ params["W"], params["gain_x"])
        b = layer_norm(carry.h @ params["U"], params["gain_h"])
        z = params["alpha"] * a * b + params["beta1"] * b + params["beta2"] * a
        i, f, g, o = jnp.split(z + params["bias"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * carry.c + jax.nn.sigmoid(i) * jnp.tanh(g)
        seen = layer_norm(c, params["gain_c"]) + params["bias_c"]
        h = jax.nn.sigmoid(o) * jnp.tanh(seen)
        return Carry(h, c), x + h


cell = MyCell()

# %% [markdown]
# ## Its gradient
#
# No gradient was written. What `scanrnn.scan` computes is compared with two things that
# know nothing of it: `jax.lax.scan` over the same step, and differences of the loss
# itself, in double precision.


# %%
@functools.partial(jax.jit, static_argnums=2)
def loss(params, xs, scan):
    step = functools.partial(cell.step, params)
    carry, ys = scan(step, cell.initial_carry(params, xs[0]), xs)
    return jnp.mean(jnp.sin(ys)) + jnp.mean(carry.c**2)


with jax.enable_x64(True):
    small = cell.init(jax.random.key(0), 6, 6, jnp.float64)
    xs = jax.random.normal(jax.random.key(1), (5, 2, 6), jnp.float64)
    # At this size the planner would leave the step to lax.scan.
    planned = functools.partial(scanrnn.scan, implementation="planned")
    ours = jax.grad(loss)(small, xs, planned)
    plain = jax.grad(loss)(small, xs, jax.lax.scan)
    for name, value in small.items():
        direction = jax.random.normal(jax.random.key(2), value.shape, jnp.float64)
        slopes = [
            loss({**small, name: value + e * direction}, xs, jax.lax.scan)
            for e in (1e-6, -1e-6)
        ]
        difference = float((slopes[0] - slopes[1]) / 2e-6)
        slope = float((ours[name] * direction).sum())
        apart = float(jnp.abs(ours[name] - plain[name]).max())
        print(
            f"{name:<7} slope {slope:+.8f}, by differences {difference:+.8f}, "
            f"largest difference from lax.scan's gradient {apart:.0e}"
        )
        assert abs(slope - difference) < 1e-7 and apart < 1e-12

# %% [markdown]
# ## Its plan
#
# What will run, and why. Of the two products of a step one is left in the loop, forward
# and in reverse; the inputs' product, with its norm, runs before the loop over all
# steps at once, and every weight gradient after it.

# %%
params = cell.init(jax.random.key(0), H, H)
xs = jnp.zeros([T, B, H])
step = functools.partial(cell.step, params)
print(scanrnn.plan(step, cell.initial_carry(params, xs[0]), xs))

# %% [markdown]
# ## Trained against an LSTM
#
# Real text that every Python has: its documentation. Both models read characters, have
# an embedding, two layers of the same width, and an output layer, and are trained alike
# by Adam. A cell of one's own is an argument of the layer, as a ready one is.

# %%
text = "".join(topics.values())
letters = sorted(set(text))
numbers = {letter: k for k, letter in enumerate(letters)}
data = np.array([numbers[letter] for letter in text])


def batches(rng):
    """Pieces of T + 1 characters from anywhere."""
    while True:
        starts = rng.integers(0, len(data) - T - 1, B)
        yield np.stack([data[start : start + T + 1] for start in starts])


class Model(nnx.Module):
    def __init__(self, cell, rngs):
        self.embed = nnx.Embed(len(letters), H, rngs=rngs)
        self.rnn = scanrnn.nnx.RNN(cell, H, H, num_layers=2, rngs=rngs)
        self.head = nnx.Linear(H, len(letters), rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.rnn(self.embed(tokens)))


@nnx.jit
def train_step(model, optimizer, batch):
    def loss(model):
        logits = model(batch[:, :-1])
        targets = batch[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def train(cell):
    model = Model(cell, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    source = batches(np.random.default_rng(0))
    return [
        float(train_step(model, optimizer, next(source))) / np.log(2)
        for _ in range(STEPS)
    ]


curves = {"LSTM": train(scanrnn.cells.lstm()), "my cell": train(cell)}

# %%
figure, axis = plt.subplots(figsize=(7, 3))
for (name, losses), color in zip(curves.items(), (GREY, BLUE), strict=True):
    mean = np.convolve(losses, np.ones(5) / 5, mode="valid")
    axis.plot(np.arange(5, len(losses) + 1), mean, color=color)
    axis.text(len(losses), mean[-1], f" {name}", color=color, va="center")
axis.set_xlabel("training step")
axis.set_ylabel("loss, bits per character\n(mean of 5 steps)")
figure.tight_layout()
plt.show()
for name, losses in curves.items():
    print(f"{name}: {np.mean(losses[-10:]):.2f} bits per character at the end")

# %% [markdown]
# ## What it costs beside the vendor's
#
# One training step (forward, every gradient, update) over a whole sequence. All take
# turns, so that whatever the machine does to one it does to the others, and medians
# are kept. On a CPU the vendor's LSTM is PyTorch's, by oneDNN; without PyTorch the
# bar is left out. The plain LSTM has less to compute: one norm, or three, is not free.


# %%
def jax_step(cell, scan):
    params = cell.init(jax.random.key(0), H, H)
    xs, target = jax.random.normal(jax.random.key(1), (2, T, B, H))

    @jax.jit
    def update(params):
        def loss(params):
            step = functools.partial(cell.step, params)
            _, ys = scan(step, cell.initial_carry(params, xs[0]), xs)
            return jnp.mean((ys - target) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    return lambda: jax.block_until_ready(update(params))


def torch_step():
    import torch

    torch.manual_seed(0)
    layer = torch.nn.LSTM(H, H)
    xs, target = torch.randn(2, T, B, H)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def update():
        optimizer.zero_grad()
        ((layer(xs)[0] - target) ** 2).mean().backward()
        optimizer.step()

    return update


runs = {
    "my cell, lax.scan": jax_step(cell, jax.lax.scan),
    "my cell, scanrnn": jax_step(cell, scanrnn.scan),
    "LSTM, scanrnn": jax_step(scanrnn.cells.lstm(), scanrnn.scan),
}
try:
    runs["LSTM, PyTorch"] = torch_step()
except ImportError:
    print("no PyTorch here: its bar is left out")
times = {name: [] for name in runs}
for round_ in range(3 if FAST else 40):
    for name, run in runs.items():
        begin = time.perf_counter()
        run()
        if round_:  # the first compiles
            times[name].append(1e3 * (time.perf_counter() - begin))
medians = {name: statistics.median(values) for name, values in times.items()}

figure, axis = plt.subplots(figsize=(7, 2.4))
colors = [BLUE if name == "my cell, scanrnn" else GREY for name in medians]
bars = axis.barh(list(medians), list(medians.values()), color=colors)
axis.bar_label(bars, fmt="%.1f", padding=3)
axis.set_xlabel(f"training step, ms (measured here; T={T}, batch {B}, {H} features)")
axis.tick_params(axis="y", length=0)
axis.margins(x=0.1)
axis.invert_yaxis()
figure.tight_layout()
plt.show()
own = medians["my cell, scanrnn"]
print(
    f"my cell is {medians['my cell, lax.scan'] / own:.1f} times as fast as by lax.scan"
)
if "LSTM, PyTorch" in medians:
    print(
        f"and takes {own / medians['LSTM, PyTorch']:.2f} of the time of PyTorch's LSTM"
    )

# %% [markdown]
# ## It was there all along
#
# Layer norm, integration and residual connections are options that compose, so this
# cell need not have been written. A gain of the shipped one has another name, and the
# function is the same. What can be put together so is in the docstrings of
# `scanrnn.cells.GateOptions` and of `lstm`, `gru` and the others; what cannot is one
# file away.

# %%
ready = scanrnn.cells.residual(
    scanrnn.cells.lstm(norm="ba2016", integration="multiplicative")
)
names = {
    "kernel": "W",
    "recurrent_kernel": "U",
    "norm_x": "gain_x",
    "norm_h": "gain_h",
    "norm_c": "gain_c",
    "norm_c_bias": "bias_c",
}
renamed = {
    name: params[names.get(name, name)] for name in ready.init(jax.random.key(0), H, H)
}
x = jax.random.normal(jax.random.key(3), (B, H))
_, y = cell.step(params, cell.initial_carry(params, x), x)
_, same = ready.step(renamed, ready.initial_carry(renamed, x), x)
print(f"largest difference of the two: {float(jnp.abs(y - same).max()):.0e}")
