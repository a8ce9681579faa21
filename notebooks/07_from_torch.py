# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From torch, and back
#
# Somebody has trained an LSTM in PyTorch and left a safetensors file. This notebook
# brings its weights over by name, checks that it computes the same, fine-tunes it here,
# and sends the weights back. Torch itself is not needed for any of it; where it is
# installed, it plays the somebody.
#
# On two CPU cores it runs in under a minute.

# %%
import importlib.util
import os
import pathlib
import tempfile

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import scanrnn
from scanrnn.interop import (
    Weights,
    from_torch,
    load_safetensors,
    save_safetensors,
    to_torch,
)

scanrnn.tune_allocator()  # as in the first notebook

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
D, H, T, B, STEPS = (6, 12, 20, 8, 20) if FAST else (8, 64, 60, 32, 300)
TORCH = importlib.util.find_spec("torch") is not None
folder = tempfile.TemporaryDirectory()
theirs = pathlib.Path(folder.name) / "theirs.safetensors"
ours = pathlib.Path(folder.name) / "ours.safetensors"

# Colours of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## The file
#
# Two layers, two directions, in torch's names: matrices lie the other way round, there
# are two biases, and the gates come as i, f, g, o. Without torch the same names are
# filled with numbers here.

# %%
inputs = np.random.default_rng(0).normal(size=(B, T, D)).astype("f4")
if TORCH:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    torch_lstm = torch.nn.LSTM(D, H, num_layers=2, bidirectional=True, batch_first=True)
    save_file(torch_lstm.state_dict(), theirs)
    with torch.no_grad():
        outputs = torch_lstm(torch.tensor(inputs))[0].numpy()
else:
    stand_in = scanrnn.nnx.LSTM(
        *(D, H), num_layers=2, bidirectional=True, scheme="torch", rngs=nnx.Rngs(0)
    )
    save_safetensors(theirs, to_torch(Weights.of(stand_in)))
    outputs = np.asarray(stand_in(inputs))

state_dict = load_safetensors(theirs)
print(len(state_dict), "arrays, such as")
for name in ("weight_ih_l0", "weight_hh_l1_reverse", "bias_hh_l0"):
    print(f"  {name} {state_dict[name].shape}")

# %% [markdown]
# ## Over
#
# `from_torch` finds layers, directions and the kind of cell by names and shapes, and
# gives `Weights`; every other library goes the same way. `layer()` makes a layer of
# them.

# %%
weights = from_torch(state_dict)
print("cell:", type(weights.cell).__name__.strip("_"), "layers:", weights.num_layers)
rnn = weights.layer()
difference = abs(np.asarray(rnn(inputs)) - outputs).max()
print(f"largest difference of the outputs: {difference:.1e}")

# %% [markdown]
# What the numbers are, one gate of one layer at a time: the recurrent matrix as torch
# drew it, from a uniform distribution that is as wide as the layer says.

# %%
figure, panels = plt.subplots(1, 4, figsize=(8, 2.4), sharey=True)
kernel = np.asarray(rnn.layers[0]["recurrent_kernel"])
for panel, gate, part in zip(panels, "ifgo", np.split(kernel, 4, axis=1), strict=True):
    panel.hist(part.ravel(), bins=30, color=BLUE)
    panel.set_title(f"gate {gate}")
    panel.set_xlabel("weight")
panels[0].set_ylabel("count")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## What does not map is said
#
# Torch has no layer for a normalised cell. Its weights have no torch names, and nothing
# is quietly left out.

# %%
normed = scanrnn.nnx.LSTM(D, H, norm="ba2016", rngs=nnx.Rngs(0))
try:
    to_torch(Weights.of(normed))
except ValueError as error:
    print(str(error).partition(";")[0])

# %% [markdown]
# ## Fine-tuned here
#
# A task that remembers: which of the first steps was the largest, asked at the end. The
# layer that came over is trained further under a new readout, with dropout between its
# layers.


# %%
class Tagger(nnx.Module):
    def __init__(self, weights, rngs):
        self.rnn = weights.layer(dropout=0.1)
        self.readout = nnx.Linear(2 * H, D, rngs=rngs)

    def __call__(self, xs, rngs=None):
        ys = self.rnn(xs, rngs=rngs, deterministic=rngs is None)
        return self.readout(ys[:, -1] + ys[:, 0])


def batch(seed):
    xs = np.random.default_rng(seed).normal(size=(B, T, D)).astype("f4")
    return xs, xs[:, 0].argmax(axis=-1)


@jax.jit
def train_step(model, optimizer, xs, labels, key):
    def loss(model):
        logits = model(xs, rngs=nnx.Rngs(dropout=key))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, gradients = jax.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return model, optimizer, value


def train(weights):
    model = Tagger(weights, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    losses = []
    for step in range(STEPS):
        key = jax.random.key(step)
        model, optimizer, value = train_step(model, optimizer, *batch(step), key)
        losses.append(float(value))
    return model, losses


model, losses = train(weights)
xs, labels = batch(10_000)
right = float((model(xs).argmax(axis=-1) == labels).mean())
print(f"loss {losses[0]:.2f} at the start, {losses[-1]:.2f} at the end")
print(f"{right:.0%} of new sequences right, {1 / D:.0%} by chance")

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(losses, color=BLUE, label="fine-tuned from torch's weights")
axes.axhline(np.log(D), color=GREY, linestyle="--", label="by chance")
axes.set_xlabel("training step")
axes.set_ylabel("cross-entropy (nats)")
axes.legend(frameon=False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## And back
#
# The way back is the same door. All numbers go through it to the bit; the second of the
# two biases comes out as zero, since only their sum was ever felt.

# %%
tuned = Weights.of(model.rnn)
save_safetensors(ours, to_torch(tuned), metadata={"made by": "scanrnn"})
again = from_torch(load_safetensors(ours))
exact = jax.tree.all(
    jax.tree.map(
        lambda a, b: bool((np.asarray(a) == b).all()),
        list(tuned.layers),
        [list(directions) for directions in again.layers],
    )
)
print("round trip exact to the bit:", exact)
if TORCH:
    from safetensors.torch import load_file

    torch_lstm.load_state_dict(load_file(ours))
    with torch.no_grad():
        back = torch_lstm(torch.tensor(xs))[0].numpy()
else:
    back = np.asarray(again.layer()(xs))
served = np.asarray(model.rnn(xs, deterministic=True))
print(f"torch and scanrnn differ by at most {abs(back - served).max():.1e}")
folder.cleanup()

# %% [markdown]
# The same two lines with another name bring weights from Keras, Flax Linen and NNX,
# Haiku, Equinox and `jax.experimental.rnn`; the table of what maps is in the
# documentation of `scanrnn.interop`.
