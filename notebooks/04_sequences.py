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
# # Sequences as they are
#
# **Question: how well does a layer read sequences that are cut off or have missing
# steps?**
#
# Sequences have different lengths, may have missing steps, can be packed, and can be
# read from both ends. This notebook reads handwritten digits row by row, as sequences
# of eight steps of eight pixels, and changes them in each of these ways. It checks
# every promise of a layer against a slow and simple computation.
#
# On two CPU cores it runs in under a minute. The digits come with scikit-learn.

# %%
import functools
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from matplotlib.colors import PowerNorm
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

import scanrnn

FAST = os.environ.get("SCANRNN_FAST") == "1"  # few steps, for the tests
H, STEPS, BATCH = (16, 5, 32) if FAST else (64, 400, 64)
close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

digits = load_digits()
images, test_images, labels, test_labels = train_test_split(
    digits.images.astype(np.float32) / 16,
    digits.target,
    test_size=500,
    random_state=0,
    stratify=digits.target,
)
print(f"{len(images)} images to learn from, {len(test_images)} to be tested with")

# %% [markdown]
# Here is one of them in three forms: whole, cut off at the bottom, and with missing
# rows.

# %%
ROWS, PIXELS = images.shape[1:]
rng = np.random.default_rng(0)
lengths = rng.integers(4, ROWS + 1, len(test_images))
cut = np.arange(ROWS) < lengths[:, None]
holes = rng.random(cut.shape) < 0.75
whole = np.ones_like(cut)
views = {"whole": whole, "cut off": cut, "rows missing": holes}

shown = np.argmax((lengths == 5) & (holes.sum(axis=1) == 6))
figure, axes = plt.subplots(1, 3, figsize=(6, 2.3))
for axis, (name, counts) in zip(axes, views.items(), strict=True):
    axis.imshow(test_images[shown], cmap="Greys", vmin=0, vmax=1)
    for row in np.flatnonzero(~counts[shown]):
        axis.axhspan(row - 0.5, row + 0.5, facecolor="#E69F00", hatch="//")
    axis.set(title=name, xticks=[], yticks=[])
axes[0].set_ylabel("step (row)")
axes[0].set_yticks(range(ROWS))
figure.tight_layout()
plt.show()

# %% [markdown]
# ## A classifier
#
# A recurrent layer reads the rows, and a linear layer reads the sum of its outputs.
# `mask` says which rows count. With `zero_padding` the outputs of the other rows are
# zeros, so they add nothing to the sum. (Without it these outputs are not defined.)
# Dropout needs random numbers, and a layer keeps none: give them to the call, or set
# `deterministic`.


# %%
class Reader(nnx.Module):
    def __init__(self, **options):
        rngs = nnx.Rngs(0)
        self.rnn = scanrnn.nnx.GRU(PIXELS, H, zero_padding=True, rngs=rngs, **options)
        directions = 2 if self.rnn.bidirectional else 1
        self.head = nnx.Linear(directions * H, 10, rngs=rngs)

    def __call__(self, images, rngs=None, **steps):
        ys = self.rnn(images, rngs=rngs, deterministic=rngs is None, **steps)
        return self.head(ys.sum(axis=1) / ROWS)


@nnx.jit
def train_step(model, optimizer, rngs, images, mask, labels):
    def loss(model, rngs):
        logits = model(images, rngs, mask=mask)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    optimizer.update(model, nnx.grad(loss)(model, rngs))


def train(model, missing=0.0):
    """Train with Adam; each row is missing with this probability."""
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    rng, rngs = np.random.default_rng(1), nnx.Rngs(dropout=1)
    for _ in range(STEPS):
        some = rng.integers(0, len(images), BATCH)
        mask = rng.random((BATCH, ROWS)) >= missing
        train_step(model, optimizer, rngs, images[some], mask, labels[some])
    return model


@nnx.jit
def read(model, images, **steps):
    return model(images, **steps)


def accuracy(model, mask):
    right = read(model, test_images, mask=mask).argmax(axis=-1) == test_labels
    return float(right.mean())


reader = train(Reader())
assert FAST or accuracy(reader, whole) > 0.95
print(f"of whole images it reads {accuracy(reader, whole):.1%} right")

# %% [markdown]
# ## Different lengths
#
# All sequences of a batch are padded to the longest one, and `seq_lengths` says how
# long each of them is. The values in the padding do not matter. Here they are NaN,
# which would spoil every result that depends on them. The returned carry is the one
# after the last row that counts.

# %%
padded = np.where(cut[..., None], test_images, np.nan)
logits = read(reader, padded, seq_lengths=lengths)
carry, ys = reader.rnn(padded, seq_lengths=lengths, return_carry=True)
for k in range(3):
    alone = test_images[k : k + 1, : lengths[k]]  # really cut, and by itself
    close(logits[k], read(reader, alone)[0])
    close(carry.h[k], ys[k, lengths[k] - 1])
print("lengths: as each sequence by itself")

# %% [markdown]
# ## Missing rows
#
# A `mask` can leave out any step. Such a step does not change the carry, as if the rows
# on both sides were neighbours.

# %%
spoilt = np.where(holes[..., None], test_images, np.nan)
logits = read(reader, spoilt, mask=holes)
for k in range(3):
    alone = test_images[k : k + 1, holes[k]]
    close(logits[k], read(reader, alone)[0])
close(read(reader, padded, mask=cut), read(reader, padded, seq_lengths=lengths))
print("mask: as the rows that are left; lengths are a mask too")

# %% [markdown]
# ## Packed sequences
#
# Computing padded steps is a waste. Instead, one line of a batch can hold several
# sequences, numbered from one by `segment_ids`; 0 is padding. The layer starts anew
# where a new number begins.

# %%
STEPS_PER_LINE = 32
places, line, begin, number = [], 0, 0, 1
for length in lengths:
    if begin + length > STEPS_PER_LINE:
        line, begin, number = line + 1, 0, 1
    places.append((line, slice(begin, begin + length), number))
    begin, number = begin + length, number + 1

packed = np.full((line + 1, STEPS_PER_LINE, PIXELS), np.nan, np.float32)
segment_ids = np.zeros(packed.shape[:2], int)
for image, length, (line, steps, number) in zip(
    test_images, lengths, places, strict=True
):
    packed[line, steps] = image[:length]
    segment_ids[line, steps] = number

ys = reader.rnn(packed, segment_ids=segment_ids)
sums = jnp.stack([ys[line, steps].sum(axis=0) for line, steps, _ in places])
close(reader.head(sums / ROWS), read(reader, padded, seq_lengths=lengths))
print(
    f"packed: the same, in {segment_ids.size} steps instead of {cut.size}; "
    f"{lengths.sum()} of them count"
)
assert lengths.sum() <= segment_ids.size < cut.size

# %% [markdown]
# ## Both directions
#
# With `bidirectional`, a second set of weights reads from the end, and the outputs of
# both are concatenated. The second one begins at the end of the sequence, not at the
# end of its padding.

# %%
both = train(Reader(bidirectional=True))
single = scanrnn.nnx.GRU(PIXELS, H, rngs=nnx.Rngs(0))
single.layers[0] = both.rnn.backward_layers[0]  # the weights that read from the end
ys = both.rnn(padded, seq_lengths=lengths)
for k in range(3):
    turned = test_images[k : k + 1, : lengths[k]][:, ::-1]
    close(ys[k, : lengths[k], H:], single(turned)[0, ::-1])
print("bidirectional: as a layer that reads the sequence turned round")

# %% [markdown]
# ## A deeper one
#
# Stacked layers are hard to train unless each layer adds its input to its output
# (`residual`). They overfit less if some features between them are left out
# (`dropout`). The first layer has 8 inputs (pixels) and 64 outputs. These sizes differ,
# so it has no residual connection. This stack learns from images with missing rows.

# %%
stack = train(Reader(num_layers=3, residual=True, dropout=0.2), missing=0.25)

cell, below = scanrnn.cells.gru(), jnp.swapaxes(test_images, 0, 1)  # time first
for layer in stack.rnn.layers:
    params = {name: weight[...] for name, weight in layer.items()}
    begin = cell.initial_carry(params, below[0])
    _, ys = jax.lax.scan(functools.partial(cell.step, params), begin, below)
    below = ys + below if below.shape == ys.shape else ys
close(stack.rnn(test_images, deterministic=True), jnp.swapaxes(below, 0, 1))

once, again, other = (
    stack.rnn(test_images, rngs=nnx.Rngs(dropout=seed)) for seed in (0, 0, 1)
)
close(once, again)
assert float(jnp.abs(once - other).max()) > 0.01
print("stack: as layer by layer; the same dropout from the same seed, only there")

# %% [markdown]
# ## How well they read
#
# This answers the question. The first two models were trained on whole images only, the
# other two on images with missing rows ("holes" in the labels). For images with missing
# rows, a bar is the mean over three random choices of the rows, and the dots are the
# three values.

# %%
models = {
    "one GRU": reader,
    "bidirectional": both,
    "one GRU, trained with holes": train(Reader(), missing=0.25),
    "three, residual, dropout,\ntrained with holes": stack,
}
drawn = [np.random.default_rng(seed).random(cut.shape) < 0.75 for seed in (1, 2, 3)]
masks = {"whole": [whole], "cut off": [cut], "rows missing": drawn}
right = {
    name: {view: [100 * accuracy(model, m) for m in masks[view]] for view in masks}
    for name, model in models.items()
}
print(f"{'right, in percent':<48}" + "".join(f"{view:>14}" for view in masks))
for name, shares in right.items():
    told = "".join(f"{np.mean(share):14.1f}" for share in shares.values())
    print(f"{name.replace(chr(10), ' '):<48}" + told)

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharey=True)
for axis, view in zip(axes, masks, strict=True):
    shares = [right[name][view] for name in models]
    colors = ["#999999", "#999999", "#0072B2", "#0072B2"]
    bars = axis.barh(list(models), [np.mean(share) for share in shares], color=colors)
    axis.bar_label(bars, fmt="%.0f", label_type="center", color="white")
    for place, share in enumerate(shares):
        if len(share) > 1:
            axis.plot(share, [place] * len(share), ".", color="black", markersize=4)
    axis.set(title=view, xlim=(0, 100), xlabel="right, in percent")
axes[0].invert_yaxis()
figure.tight_layout()
plt.show()

# %%
plain, holed = right["one GRU"], right["one GRU, trained with holes"]
ends = right["bidirectional"]
assert FAST or min(holed["rows missing"]) > max(plain["rows missing"]) + 5
assert FAST or abs(holed["whole"][0] - plain["whole"][0]) < 5
assert FAST or abs(np.mean(ends["rows missing"]) - np.mean(holed["rows missing"])) < 3
assert FAST or ends["cut off"][0] < plain["cut off"][0] < holed["cut off"][0] - 3

# %% [markdown]
# These are the mistakes of the last model, on images with missing rows:

# %%
guesses = read(stack, spoilt, mask=holes).argmax(axis=-1)
table = confusion_matrix(test_labels, guesses, labels=range(10))
figure, axis = plt.subplots(figsize=(5, 4.4))
image = axis.imshow(table, cmap="cividis", norm=PowerNorm(0.5))
for written, guessed in np.argwhere(table):
    count = table[written, guessed]
    color = "black" if image.norm(count) > 0.5 else "white"
    axis.text(guessed, written, count, ha="center", va="center", color=color)
axis.set(
    xticks=range(10),
    yticks=range(10),
    xlabel="read as",
    ylabel="digit that was written",
)
figure.colorbar(image, label="images")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## What is surprising
#
# All padding in this notebook is NaN, and no NaN came out. It also helps to train with
# masks: if the same small GRU is trained on images with missing rows, it reads such
# images much better, and whole images about as well as before. Reading from both ends
# helps nearly as much with missing rows, and not with cut-off images.
#
# ## Where to go from here
#
# - `resets` starts anew before single steps, as an agent does when an episode is over.
#   `return_all_carries` gives the carry after every step.
# - `scanrnn.linen` has the same layers as Linen modules, with the same calls.
# - `docs/coming_from.md` lists the names that PyTorch, Keras, Haiku and Flax use, and
#   our names for the same things.
