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
# # Training that does not break
#
# A recurrent network multiplies by the same matrix at every time step, so its
# gradients shrink or grow with every step, and one number that is not finite spoils
# all that follow. This notebook breaks training in four ways, on purpose, looks at
# what happens, and shows what `scanrnn.training` does about it:
#
# 1. gradients that explode, and clipping;
# 2. a batch with a NaN in it, and the guarded step;
# 3. gradients too small for float16, and loss scaling;
# 4. gates that saturate, and layer norm.
#
# On two CPU cores it runs in about a minute.

# %%
import functools
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from flax.training.dynamic_scale import DynamicScale

import scanrnn
from scanrnn import cells, training

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
B, T, D, H = (4, 20, 16, 32) if FAST else (16, 50, 64, 128)
STEPS = 10 if FAST else 40

# %% [markdown]
# ## Gradients that explode
#
# A plain RNN of 64 inputs and 128 features, 16 sequences of 50 steps. As PyTorch
# starts it, its recurrent matrix has a spectral radius of about 0.6: whatever happens
# at the last step is forgotten on the way back to the first. Three times those weights,
# and it grows instead.
#
# `training.probe` runs any step function over a sequence and says, for every time step,
# how large the gradient of the loss is by the carry before it. The loss here looks at
# the last output alone.

# %%
cell = cells.elman()
xs = jax.random.normal(jax.random.key(42), [T, B, D])
targets = jax.random.normal(jax.random.key(43), [B, H])


def last_loss(ys):
    return jnp.mean((ys[-1] - targets) ** 2)


def look(factor):
    params = cell.init(jax.random.key(0), D, H, scheme="torch")
    params["recurrent_kernel"] *= factor
    step = functools.partial(cell.step, params)
    carry = cell.initial_carry(params, xs[0])
    return training.probe([step], [carry], xs, last_loss, [params], [cell.gates])[0]


for factor in (1, 2, 3):
    health = look(factor)
    first, last = health.grad_norms[0], health.grad_norms[-1]
    print(
        f"weights times {factor}: spectral radius {health.radii[0]:.2f}, gradient "
        f"{last:.1e} at the last step, {first:.1e} at the first"
    )
    plt.semilogy(health.grad_norms, label=f"times {factor}")
plt.xlabel("time step")
plt.ylabel("norm of the gradient by the carry")
plt.title("vanishing and exploding gradients")
plt.legend()
plt.show()

# %% [markdown]
# Now train the third one with a learning rate that is too brave: once as it is, once
# with the gradient clipped to a global norm of 1. The norm that is shown is the one
# *before* clipping, always. As it is, one step along a gradient of thousands throws
# the network to where everything is saturated; there is no gradient to come back by.


# %%
def train(clip, factor=3, learning_rate=10.0):
    rnn = scanrnn.nnx.Elman(D, H, scheme="torch", rngs=nnx.Rngs(42))
    kernel = rnn.layers[0]["recurrent_kernel"]
    kernel[...] = factor * kernel[...]
    graphdef, params = nnx.split(rnn)
    inputs = jnp.swapaxes(xs, 0, 1)
    wanted = 0.5 * jnp.tanh(targets)

    def loss_fn(params, carry, batch, key):
        ys = nnx.merge(graphdef, params)(inputs)
        return jnp.mean((ys[:, -1] - wanted) ** 2), (carry, ys)

    optimizer = optax.sgd(learning_rate)
    step = training.make_train_step(loss_fn, optimizer, clip=clip)
    state = training.init_state(params, optimizer, key=jax.random.key(0))
    rows = []
    for _ in range(STEPS):
        state, metrics = step(state, ())
        rows.append((float(metrics.loss), float(metrics.grad_norm)))
    return np.array(rows)


figure, (above, below) = plt.subplots(2, sharex=True)
for clip in (None, 1.0):
    losses, norms = train(clip).T
    label = "as it is" if clip is None else f"clipped to {clip}"
    print(
        f"{label}: loss {losses[0]:.3f}, then {losses[-1]:.3f}; largest norm "
        f"{norms.max():.1f}, last {norms[-1]:.2g}"
    )
    above.plot(losses, label=label)
    below.semilogy(norms, label=label)
below.axhline(1.0, color="0.6", linewidth=0.8)
above.set(ylabel="loss", title="clipping")
below.set(xlabel="step", ylabel="norm before clipping")
above.legend()
plt.show()

# %% [markdown]
# ## A batch with a NaN in it
#
# A guarded step looks at the outputs, the loss, the gradient and the updated
# parameters. If one of them is not finite, nothing is changed: parameters, optimiser
# and carry stay bit for bit as they were, the step is counted, and the metrics name
# the fault. Here two batches of twenty are spoiled.

# %%
rnn = scanrnn.nnx.LSTM(D, H, norm="ba2016", rngs=nnx.Rngs(0))
graphdef, params = nnx.split(rnn)


def loss_fn(params, carry, batch, key):
    ys = nnx.merge(graphdef, params)(batch)
    return jnp.mean((ys - 0.3) ** 2), (carry, ys)


optimizer = optax.adam(3e-3)
step = training.make_train_step(loss_fn, optimizer, clip=1.0)
state = training.init_state(params, optimizer, key=jax.random.key(0))
rows = []
for number in range(20):
    batch = jax.random.normal(jax.random.key(number), [B, T, D])
    if number in (7, 13):
        batch = batch.at[0, 3, 1].set(jnp.nan)
    state, metrics = step(state, batch)
    rows.append((float(metrics.loss), bool(metrics.skipped)))
    if metrics.skipped:
        fault = training.FAULTS[int(metrics.fault)]
        print(f"step {number}: skipped, because its {fault} is not finite")
finite = all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(state.params))
print(
    f"{int(state.counts.skipped)} of {int(state.counts.steps)} steps were skipped; "
    f"all parameters are finite: {finite}"
)

losses, skipped = np.array(rows).T
plt.plot(losses, "o-")
for number in np.flatnonzero(skipped):
    plt.axvline(number, color="tab:red", linewidth=0.8)
plt.xlabel("step")
plt.ylabel("loss")
plt.title("two batches with a NaN")
plt.show()

# %% [markdown]
# In `training.fit` and on the command line, twenty such steps in a row end the run with
# an error, and the last good checkpoint is as it was.
#
# ## Half precision
#
# `Precision` says which numbers are kept in which type. bfloat16 has the range of
# float32 and needs nothing else. float16 has more digits, but what is below 6e-8 is
# zero, and gradients of a mean over many outputs are. Here is how many, of the
# gradient by the inputs of a layer in float16 for a mean over a thousand times as many
# outputs as these.

# %%
precision = training.Precision.parse("float16")
print(precision)
half = scanrnn.nnx.LSTM(
    D, H, **precision.layer_options() | {"carry_dtype": jnp.float16}, rngs=nnx.Rngs(0)
)
batch = jax.random.normal(jax.random.key(0), [B, T, D]).astype(jnp.float16)


def scaled_loss(batch, scale):
    ys = precision.to_output(half(batch))  # the loss itself is in float32
    return scale * jnp.mean((ys - 0.3) ** 2) / 1000


shares = []
scales = 2.0 ** np.arange(0, 42, 3)
for scale in scales:
    grads = jax.grad(scaled_loss)(batch, jnp.float32(scale))
    shares.append([float(jnp.mean(grads == 0)), float(jnp.mean(~jnp.isfinite(grads)))])
zeros, overflows = np.array(shares).T
print(f"zeros: {zeros[0]:.0%} without scaling, {zeros[5]:.0%} with 2**15")
plt.semilogx(scales, zeros, base=2, label="zero")
plt.semilogx(scales, overflows, base=2, label="not finite")
plt.xlabel("loss scale")
plt.ylabel("share of the gradient in float16")
plt.title("what loss scaling is for")
plt.legend()
plt.show()

# %% [markdown]
# Too small a scale loses the gradient, too large a one overflows. Flax's `DynamicScale`
# in the state finds the largest that works: a step that is not finite is skipped and
# halves it, a number of good ones doubles it. Master weights and optimiser stay in
# float32 throughout.

# %%
options = precision.layer_options() | {"carry_dtype": jnp.float16}
rnn = scanrnn.nnx.LSTM(D, H, num_layers=2, **options, rngs=nnx.Rngs(0))
graphdef, params = nnx.split(rnn)


def half_loss(params, carry, batch, key):
    ys = precision.to_output(nnx.merge(graphdef, params)(batch))
    return 200 * jnp.mean((ys - 0.3) ** 2), (carry, ys)


step = training.make_train_step(half_loss, optimizer, clip=1.0)
state = training.init_state(
    params,
    optimizer,
    key=jax.random.key(0),
    loss_scale=DynamicScale(scale=2.0**30, growth_interval=STEPS // 5),
)
rows = []
for _ in range(STEPS):
    state, metrics = step(state, batch)
    rows.append((float(metrics.loss), float(metrics.loss_scale)))
losses, scales = np.array(rows).T
print(
    f"loss {losses[0]:.2f}, then {losses[-1]:.2f}; {int(state.counts.skipped)} steps "
    f"skipped while the scale fell from 2**30 to 2**{int(np.log2(scales.min()))}"
)
print("weights:", {str(a.dtype) for a in jax.tree.leaves(state.params)})

plt.semilogy(scales, base=2, drawstyle="steps-post")
plt.xlabel("step")
plt.ylabel("loss scale")
plt.title("dynamic loss scaling")
plt.show()

# %% [markdown]
# ## Gates that saturate
#
# A gate at 0 or 1 passes no gradient to its weights. Inputs that are ten times too
# large do that to an LSTM; layer norm takes their size away. `training.probe` counts
# what every squashing function of a step gives, in the order in which it computes
# them: of an LSTM the gates f, i, o, then the candidate and the output.

# %%
large = 10 * xs
layers = []
for norm in (None, "ba2016"):
    cell = cells.lstm(norm=norm)
    params = cell.init(jax.random.key(0), D, H)
    step = functools.partial(cell.step, params)
    carry = cell.initial_carry(params, xs[0])
    layers += training.probe([step], [carry], large, last_loss, [params], [cell.gates])
for name, health in zip(("plain", "layer norm"), layers, strict=True):
    shares = ", ".join(f"{share:.0%}" for share in health.saturated[:3])
    print(
        f"{name}: saturated gates {shares}; gradient at the first step "
        f"{health.grad_norms[0]:.1e}"
    )

assert training.draw_health("health.png", layers)
plt.figure(figsize=(10, 3.5))
plt.imshow(plt.imread("health.png"))
plt.axis("off")
plt.title("layer 1: plain, layer 2: with layer norm")
plt.show()

# %% [markdown]
# The same picture of a run of your own: `python -m scanrnn train --health` probes the
# model at every evaluation, writes the numbers into `log.jsonl` and draws `health.png`.
