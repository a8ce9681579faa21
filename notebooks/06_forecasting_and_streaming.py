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
# # Forecasting and streaming
#
# A forecaster is trained on whole windows and asked one measurement at a time. This
# notebook trains one, serves many streams that come and go without computing anything
# twice, saves what a stream knows and goes on from it, and takes the model out of JAX:
# to ONNX, run by onnxruntime.
#
# On two CPU cores it runs in under a minute.

# %%
import os
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import optax
from flax import nnx

import scanrnn
from scanrnn.serving import Input, Streaming, step_by_step, to_onnx

scanrnn.tune_allocator()  # as in the first notebook

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
H, T, STEPS = (16, 32, 30) if FAST else (64, 96, 400)
AHEAD = 6  # hours between a measurement and what is forecast

# Colours of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## A load to forecast
#
# Hourly measurements of many sites, made here: a day, a week, weather that wanders, and
# noise. What is known at an hour is the load and the hour; what is asked for is the
# load six hours later.


# %%
def sites(count, hours, seed):
    """Loads `[count, hours]`, and features `[count, hours, 3]`."""
    random = np.random.default_rng(seed)
    hour = np.arange(hours) + random.integers(0, 168, (count, 1))
    day, week = 2 * np.pi * hour / 24, 2 * np.pi * hour / 168
    weather = np.cumsum(random.normal(size=(count, hours)), axis=1)
    weather -= 0.98 * np.cumsum(weather, axis=1) / np.arange(1, hours + 1)
    load = np.sin(day) + 0.5 * np.sin(week) * np.cos(day) + 0.1 * weather
    load += 0.05 * random.normal(size=load.shape)
    features = np.stack([load, np.sin(day), np.cos(day)], axis=-1)
    return load.astype("f4"), features.astype("f4")


load, features = sites(64, T + AHEAD, seed=0)
xs, targets = features[:, :T], load[:, AHEAD:]
print("features", xs.shape, "targets", targets.shape)

# %% [markdown]
# ## The forecaster
#
# Two recurrent layers with layer normalisation, and a readout. For serving we will want
# its layers by themselves, so they are parts of it.


# %%
class Forecaster(nnx.Module):
    def __init__(self, rngs):
        self.rnn = scanrnn.nnx.LSTM(3, H, num_layers=2, norm="ba2016", rngs=rngs)
        self.readout = nnx.Linear(H, 1, rngs=rngs)

    def __call__(self, xs):
        return self.readout(self.rnn(xs))[..., 0]


model = Forecaster(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


@jax.jit
def train_step(model, optimizer, xs, targets):
    def loss(model):
        return jnp.mean((model(xs) - targets) ** 2)

    value, gradients = jax.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return model, optimizer, value


losses = []
for _ in range(STEPS):
    model, optimizer, value = train_step(model, optimizer, xs, targets)
    losses.append(float(value))
print(f"mean squared error {losses[0]:.3f} at the start, {losses[-1]:.3f} at the end")

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.semilogy(losses, color=BLUE)
axes.set_xlabel("training step")
axes.set_ylabel("mean squared error")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## One hour at a time
#
# `Streaming` keeps the carries of the layers between calls. A chunk may have any
# length: it is filled up to the next bucket, so that few programs are compiled. The
# answers are those of the whole sequence.

# %%
later, fresh = sites(4, 3 * T, seed=1)
stream = Streaming(model.rnn, streams=4, buckets=(1, 8, 32))
parts, start = [], 0
for size in (24, 1, 1, 5, 40):  # a day of the past, then as they come
    parts.append(stream(fresh[:, start : start + size]))
    start += size
chunked = np.concatenate(parts, axis=1)
whole = np.asarray(model.rnn(fresh[:, :start]))
print(f"largest difference of chunks and whole: {abs(chunked - whole).max():.1e}")

# %% [markdown]
# Streams join and leave. Here one site is switched off and another takes its place with
# a fresh carry, while the others go on; a stream that has nothing new just waits.

# %%
stream.leave(2)
place = stream.join()
answers = stream({place: fresh[2, :10], 0: fresh[0, start : start + 3]})
alone = np.asarray(model.rnn(fresh[2:3, :10]))[0]
print("the new stream got place", place, "and answers", answers[place].shape)
print(f"as if it were alone, up to {abs(answers[place] - alone).max():.1e}")

# %% [markdown]
# What is kept can be saved, and another process goes on from it.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "streams.safetensors"
    scanrnn.interop.save_safetensors(path, stream.state())
    other = Streaming(model.rnn, streams=4, buckets=(1, 8, 32))
    other.restore(scanrnn.interop.load_safetensors(path))
    print(path.stat().st_size, "bytes hold all of it")
same = (other(fresh[:, -4:]) == stream(fresh[:, -4:])).all()
print("goes on bit for bit:", bool(same))

# %% [markdown]
# ## What a bidirectional layer would do
#
# It reads the sequence from its end, too, and a stream has no end yet; so it is
# refused.

# %%
both = scanrnn.nnx.LSTM(3, H, bidirectional=True, rngs=nnx.Rngs(0))
try:
    Streaming(both)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Out of JAX
#
# The same model as an ONNX file, with open batch and time, carries in and out. Its
# layers are normalised, for which ONNX has no operator: their step becomes the body of
# a `Scan`. A plain LSTM would become ONNX's own.

# %%
served = step_by_step(model)
carry, _ = model.rnn(fresh[:1, :1], return_carry=True)
structure = jax.tree.structure(carry)
inputs = {"input": Input(("batch", "sequence", 3))}
inputs |= {f"carry_{k}": Input(("batch", H)) for k in range(4)}


def forecast(xs, *carry):
    first = structure.unflatten(carry)
    last, ys = served.rnn(xs, initial_carry=first, return_carry=True)
    return [served.readout(ys)[..., 0], *jax.tree.leaves(last)]


names = ["forecast", *(f"next_{k}" for k in range(4))]
proto = to_onnx(forecast, inputs=inputs, outputs=names)
session = onnxruntime.InferenceSession(proto.SerializeToString())
print("operators:", sorted({node.op_type for node in proto.graph.node}))

# %%
state = [np.zeros([4, H], "f4") for _ in range(4)]
hourly = []
for hour in range(2 * T):
    feed = {f"carry_{k}": one for k, one in enumerate(state)}
    answer, *state = session.run(None, feed | {"input": fresh[:, hour : hour + 1]})
    hourly.append(answer[:, 0])
hourly = np.stack(hourly, axis=1)
error = np.mean((hourly[:, :-AHEAD] - later[:, AHEAD : 2 * T]) ** 2)
print(f"mean squared error at sites that were never seen: {error:.3f}")
wanted = np.asarray(model(fresh[:, : 2 * T]))
print(f"onnxruntime and JAX differ by at most {abs(hourly - wanted).max():.1e}")

# %%
figure, axes = plt.subplots(figsize=(7, 3))
hours = np.arange(2 * T)
axes.plot(hours, later[0, : 2 * T], color=GREY, label="measured")
axes.plot(
    hours + AHEAD, hourly[0], color=ORANGE, linestyle="--", label="forecast by ONNX"
)
axes.set_xlabel("hour")
axes.set_ylabel("load (daily swing is 1)")
axes.legend(frameon=False, loc="upper left", ncols=2)
axes.set_ylim(top=later[0].max() + 1)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## What an answer costs
#
# One hour of one site, again and again: half of the calls are faster than the dot, one
# in a hundred slower than the end of the line. A call for one step costs about what it
# costs to start it; over many steps a `Scan` of onnxruntime pays for every node of
# every step.

# %%
CALLS = 50 if FAST else 500
one = Streaming(model.rnn, streams=1, buckets=(1, 32))
feed = {f"carry_{k}": np.zeros([1, H], "f4") for k in range(4)}
runs = {
    "scanrnn, 1 step": lambda: one(fresh[:1, :1]),
    "onnxruntime, 1 step": lambda: session.run(None, feed | {"input": fresh[:1, :1]}),
    "scanrnn, 32 steps": lambda: one(fresh[:1, :32]),
    "onnxruntime, 32 steps": lambda: session.run(
        None, feed | {"input": fresh[:1, :32]}
    ),
}
middle, slowest = {}, {}
for name, run in runs.items():
    run()
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - begin))
    middle[name], slowest[name] = statistics.median(times), np.quantile(times, 0.99)
    print(f"{name}: median {middle[name]:.0f} us, one in 100 over {slowest[name]:.0f}")

# %%
figure, axes = plt.subplots(figsize=(6, 2.6))
places = np.arange(len(runs))
colours = [BLUE if "scanrnn" in name else GREEN for name in runs]
axes.hlines(places, list(middle.values()), list(slowest.values()), color=colours)
axes.scatter(list(middle.values()), places, color=colours, s=60)
axes.set_yticks(places, list(runs))
axes.invert_yaxis()
axes.set_xscale("log")
axes.set_xlabel("microseconds per call (dot: median, line: to 99 of 100)")
figure.tight_layout()
plt.show()
