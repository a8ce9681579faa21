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
# # What the planner does
#
# NVIDIA's guide
# [Optimizing Recurrent Layers](https://docs.nvidia.com/deeplearning/performance/dl-performance-recurrent/index.html)
# explains a fast LSTM by its matrix products (GEMMs): which there are, how large, and
# which of them must wait for the step before. This notebook draws the same pictures
# for a step function of yours, from the plans of scanrnn.
#
# Every number here is of one of three kinds, and each figure says which:
#
# - **counted** from the plan: exact, the same on every machine;
# - **measured** while you run this notebook, on the machine you run it on;
# - **estimated** from a machine's data sheet: a rough guide, with nothing run.
#
# On two CPU cores this notebook runs in well under a minute, most of it compiling.

# %%
import os
import statistics
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import scanrnn

scanrnn.tune_allocator()  # as in the first notebook

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
T, B, H = (20, 4, 16) if FAST else (128, 8, 128)

# Colours of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
PURPLE, GREY = "#CC79A7", "#999999"
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## The step
#
# An LSTM as it stands in the papers, one product for each gate, and an output head. It
# is the worst case for a machine: five small products at every step.


# %%
def step(params, carry, x):
    h, c = carry
    xh = jnp.concatenate([x, h], axis=-1)
    i = jax.nn.sigmoid(xh @ params["W_i"])
    f = jax.nn.sigmoid(xh @ params["W_f"] + 1)
    g = jnp.tanh(xh @ params["W_g"])
    o = jax.nn.sigmoid(xh @ params["W_o"])
    c = f * c + i * g
    h = o * jnp.tanh(c)
    return (h, c), h @ params["V"]


rng = np.random.default_rng(0)
shapes = {f"W_{gate}": (2 * H, H) for gate in "ifgo"} | {"V": (H, H)}
params = {
    name: rng.uniform(-1, 1, shape).astype(np.float32) / np.sqrt(H)
    for name, shape in shapes.items()
}
xs = rng.standard_normal((T, B, H), np.float32)
init = (jnp.zeros((B, H)), jnp.zeros((B, H)))


def planned(**options):
    return scanrnn.plan(lambda carry, x: step(params, carry, x), init, xs, **options)


# %% [markdown]
# ## The GEMMs, before and after
#
# This is the step as `jax.lax.scan` runs it. In NVIDIA's terms M is the side of the
# weights, N that of the data, and K is what is summed over. Everything is in the loop:
# each product in the forward loop, its two gradients in the reverse loop.

# %%
before = planned(implementation="scan")
print(before)

# %% [markdown]
# And this is the step as scanrnn runs it. One product per step is left in each loop,
# the recurrent one of all four gates. The inputs' products run before the loop, the
# output head after it, and each weight gradient is one product over all steps: look at
# its K, which was the batch and is now batch times steps.

# %%
after = planned()
print(after)

# %% [markdown]
# The same, counted from the two tables. The arithmetic does not change, as the bars on
# the right show: a plan moves work, it does not save any. But less than a third of it
# still waits for the step before, and far fewer products have to be started.


# %%
PHASES = ("forward", "activation gradient", "weight gradient")
PLANS = {"lax.scan": before, "scanrnn": after}


def total(plan, phase, inside, what):
    """Sums over the rows of a phase, those in the loop or the others."""
    rows = [row for row in plan.gemms if row.phase == phase]
    return sum(what(row) for row in rows if (row.where == "loop") == inside)


figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
quantities = (
    (lambda row: row.count, "GEMMs in one training step"),
    (lambda row: row.flops / 1e9, "their arithmetic, GFLOP"),
)
labels = [f"{phase}, {name}" for phase in PHASES for name in PLANS]
for axis, (what, label) in zip(axes, quantities, strict=True):
    parts = {
        inside: [
            total(p, phase, inside, what) for phase in PHASES for p in PLANS.values()
        ]
        for inside in (True, False)
    }
    axis.barh(labels, parts[True], color=ORANGE, label="in the loop")
    axis.barh(
        labels, parts[False], left=parts[True], color=BLUE, label="before or after it"
    )
    if label.startswith("GEMMs"):
        sums = [a + b for a, b in zip(parts[True], parts[False], strict=True)]
        for y, (inside, all_) in enumerate(zip(parts[True], sums, strict=True)):
            note = f" {inside} + {all_ - inside}" if all_ > inside else f" {inside}"
            axis.text(all_, y, note, va="center")
        axis.margins(x=0.15)
    axis.set_xlabel(f"{label} (counted)")
axes[0].invert_yaxis()
axes[0].tick_params(axis="y", length=0)
figure.legend(
    *axes[0].get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False
)
figure.suptitle(f"T={T} steps, batch {B}, {H} features", x=0.02, ha="left", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## One pass at a time
#
# Six passes made that plan. `scanrnn.Options` turns each off by itself:
#
# - `split` takes `concatenate([x, h]) @ W` apart, so that the half of `x` can leave;
# - `hoist` runs what needs the inputs alone before the loop;
# - `merge` joins the products of the four gates;
# - `layout` reads each gate by itself, and writes over what is read no more;
# - `sink` runs the output head after the loop;
# - `defer` computes weight gradients after the reverse loop.
#
# Each contender is a whole training step (forward, backward, update), compiled once.
# Its gradients are checked first. Then all take turns, so that whatever the machine
# does to one it does to the others, and the median is kept. The memory policies of the
# next section run along.

# %%
PASSES = ("split", "hoist", "merge", "layout", "sink", "defer")
POLICIES = ("recompute", "chunked", "everything")  # and "minimal", which is the default
plans = {"lax.scan": before, "all passes": after}
plans |= {f"no {name}": planned(**{name: False}) for name in PASSES}
plans |= {policy: planned(residuals=policy) for policy in POLICIES}
target = rng.standard_normal((T, B, H), np.float32)


def compiled(plan):
    """Forward, backward and update with a plan."""

    def loss(params):
        _, ys = scanrnn.scan(
            lambda carry, x: step(params, carry, x), init, xs, plan=plan.options
        )
        return jnp.mean((ys - target) ** 2)

    def update(params):
        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), grads

    return jax.jit(update).lower(params).compile()


programs = {name: compiled(plan) for name, plan in plans.items()}
gradients = {name: program(params)[1] for name, program in programs.items()}
for name in programs:
    for key, expected in gradients["lax.scan"].items():
        np.testing.assert_allclose(
            gradients[name][key], expected, rtol=1e-3, atol=1e-6, err_msg=name
        )


def timed(program):
    begin = time.perf_counter()
    jax.block_until_ready(program(params))
    return 1e3 * (time.perf_counter() - begin)


rounds = 3 if FAST else 15
times = {name: [] for name in programs}
for _ in range(rounds):
    for name, program in programs.items():
        times[name].append(timed(program))
medians = {name: statistics.median(values) for name, values in times.items()}


def per_step(plan):
    """GEMMs of one step in the forward and the reverse loop."""
    return sum(row.count for row in plan.gemms if row.where == "loop") / T


def kept(name):
    """Megabytes from the forward to the reverse loop, without inputs and outputs."""
    return plans[name].residual_bytes[0] / 1e6


def temporaries(name):
    """Megabytes that the compiled program needs besides arguments and results."""
    return programs[name].memory_analysis().temp_size_in_bytes / 1e6


# %%
shown = ("lax.scan", *(f"no {name}" for name in PASSES), "all passes")
colors = [GREY, *[BLUE] * len(PASSES), GREEN]
panels = (
    (
        {name: per_step(plans[name]) for name in shown},
        "%.0f",
        "GEMMs per step\n(counted)",
    ),
    (medians, "%.1f", "training step, ms\n(measured here)"),
    (
        {name: temporaries(name) for name in shown},
        "%.1f",
        "temporary memory, MB\n(compiled here)",
    ),
)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True)
for axis, (values, form, label) in zip(axes, panels, strict=True):
    bars = axis.barh(shown, [values[name] for name in shown], color=colors)
    axis.bar_label(bars, fmt=form, padding=3)
    axis.set_xlabel(label)
    axis.margins(x=0.2)
    axis.tick_params(axis="y", length=0)
axes[0].invert_yaxis()
figure.tight_layout()
plt.show()
saved = medians["lax.scan"] / medians["all passes"]
print(f"with all passes a training step is {saved:.1f} times as fast as with lax.scan")

# %% [markdown]
# What each pass is for shows best in the left panel:
#
# - without `hoist` the inputs' products stay in the loop, with both their gradients;
# - without `merge` there are four products forward and four in reverse;
# - without `sink` the output head is back, and its gradient;
# - without `defer` the recurrent weight gradient is, and far more is kept for it, which
#   shows in the right panel;
# - `split` does not change the number but the size: without it the inputs' half of
#   each product stays in the loop;
# - `layout` is mostly about memory: without it gates and their gradients get arrays
#   of their own.
#
# Fewer products do not always mean less time. A CPU starts one at little cost, so that
# at this size a pass may gain little, or nothing: where this was written, `defer` and
# `split` gained most. A GPU pays for each start, as the last figure will show. Bars
# that differ by a tenth are equal. `scanrnn.plan(..., tune=True)` times the likely
# plans on your sizes and takes the fastest.
#
# ## Memory
#
# The reverse loop needs values of the forward loop. What is kept for it is a policy,
# `scanrnn.Options(residuals=...)`; the rest is computed again.
#
# - "minimal", the default, keeps what products made, and the carries.
# - "recompute" keeps carries, and makes the gates again, for all steps of a chunk at
#   once: products more, and the memory of a chunk. A GPU and a TPU do so on their own.
# - "chunked" keeps the carries at the start of each of about sqrt(T) chunks of steps,
#   with its inputs, and runs each chunk twice. It is for long sequences.
# - "everything" keeps all that a derivative reads.

# %%
chosen = {"lax.scan": "lax.scan", "minimal": "all passes", **{p: p for p in POLICIES}}
print("              kept, MB  temporaries, MB  training step, ms")
print("             (counted)  (compiled here)    (measured here)")
for label, name in chosen.items():
    print(
        f"{label:<12} {kept(name):>9.2f} {temporaries(name):>16.2f}"
        f" {medians[name]:>18.2f}"
    )

# %%
figure, axis = plt.subplots(figsize=(7, 3))
colors = (GREY, GREEN, BLUE, ORANGE, PURPLE)
for (label, name), color, marker in zip(chosen.items(), colors, "Xo^sD", strict=True):
    point = kept(name), medians[name]
    axis.plot(*point, marker, color=color, markersize=10, label=label, clip_on=False)
axis.set_xlabel("kept for the reverse loop, MB (counted)")
axis.set_ylabel("training step, ms\n(measured here)")
axis.set_xlim(0, 1.1 * max(map(kept, chosen.values())))
axis.set_ylim(0, 1.1 * max(medians[name] for name in chosen.values()))
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## One step, three machines
#
# What a step *allows* is true everywhere; what *pays* depends on the machine. The
# planner asks a `scanrnn.Machine`, and one need not be at hand: `machine="h100"` plans
# for a GPU on a laptop, and shapes will do in place of arrays. This step has two layer
# norms, and its sequence is long, so that every rule has something to say.


# %%
def norm(u, gain):
    mean = u.mean(axis=-1, keepdims=True)
    var = ((u - mean) ** 2).mean(axis=-1, keepdims=True)
    return gain * (u - mean) / jnp.sqrt(var + 1e-5)


def normed_step(params, carry, x):
    h, c = carry
    z = norm(x @ params["W"], params["gain_x"]) + h @ params["U"]
    i, f, g, o = jnp.split(z, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(norm(c, params["gain_c"]))
    return (h, c), h


def plan_for(machine, steps=4096, batch=8, size=256, **options):
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    weights = {
        "W": jnp.ones((size, 4 * size)),
        "U": jnp.ones((size, 4 * size)),
        "gain_x": jnp.ones(4 * size),
        "gain_c": jnp.ones(size),
    }
    state = array(batch, size), array(batch, size)
    inputs = array(steps, batch, size)
    return scanrnn.plan(
        lambda carry, x: normed_step(weights, carry, x),
        state,
        inputs,
        machine=machine,
        **options,
    )


MACHINES = ("cpu", "h100", "tpu v5e")
on = {machine: plan_for(machine) for machine in MACHINES}
print(on["cpu"])

# %% [markdown]
# And what is different in the reports for the other machines: lines that are not there
# (-), and those that are there in their place (+). The row "cpu" counts the cores of
# this machine; the others are data sheets.

# %%
known = str(on["cpu"]).splitlines()
for machine in MACHINES[1:]:
    lines = str(on[machine]).splitlines()
    print(f"--- {machine}")
    print(*(f"- {line}" for line in known if line not in lines), sep="\n")
    print(*(f"+ {line}" for line in lines if line not in known), sep="\n")
    print()

# %% [markdown]
# The rules behind these lines are those of who runs the loop, for each platform; beside
# each stands in the code (`scanrnn/executors/_xla.py`) what was seen:

# %%
RULES = {
    "overwrites": "reuse the memory of rows read no more",
    "reads_gates_apart": "read each gate by its own slice",
    "transposes_weights": "transpose weights once, before the loop",
    "packs_gates": "stack the gates as one array",
    "pins_rows": "pin arrays step by step in memory",
    "sums_gains_in_loop": "sum gradients of gains in the loop",
    "norm_share": "of the fast memory, for norms at a time",
    "outside_bytes": "MB that may leave the loop at once",
    "steps_per_trip": "steps in one trip of the loop",
}


def told(rules, rule):
    value = getattr(rules, rule)
    if rule == "steps_per_trip":
        return str(value(4096))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "all" if value is None else f"{value / (1e6 if value > 1 else 1):.3g}"


print(" " * 60 + "".join(f"{machine:>9}" for machine in MACHINES))
for rule, meaning in RULES.items():
    cells = "".join(f"{told(on[machine].rules, rule):>9}" for machine in MACHINES)
    print(f"{rule:<19} {meaning:<40}{cells}")

# %% [markdown]
# - **CPU.** Time goes into memory and its caches. Gates are sliced from the whole
#   sequence, norms are differentiated a few steps at a time, in the cache, and
#   gradients of gains are summed while their terms are still there.
# - **GPU.** Time goes into starting kernels. Several steps share a trip of the loop,
#   and what can be one kernel after the loop is not done in it: a second cotangent is
#   stacked, from which the gradient of the carry's gain is summed at the end. The
#   sequence goes in eight chunks, whose gates are made again: half of the memory.
# - **TPU.** Nothing is written over what is read no more: such a row, a step late,
#   costs nearly as much as a product. The sequence goes in chunks that fit the fast
#   memory (VMEM): of each the gates are made again from the carries, and the reverse
#   loop is given what it would make of values alone. The layout in memory is pinned, so
#   that the compiler does not make time a minor axis and gather every row.
#
# The estimates in the reports choose between a plan and `lax.scan`. They are simple
# enough to be made again from `plan.gemms`: for each product the time to start it, and
# the greater of the times for its arithmetic and its memory; and a kernel per step and
# direction for all the rest.


# %%
def estimate(plan):
    """Milliseconds of starting kernels, and of the products themselves."""
    cost = plan.cost
    return 1e3 * cost.dispatch, 1e3 * (cost.arithmetic + cost.memory)


figure, axes = plt.subplots(1, 3, figsize=(9, 2.7), sharey=True)
for axis, machine in zip(axes, MACHINES, strict=True):
    pair = {
        "lax.scan": plan_for(machine, implementation="scan"),
        "scanrnn": on[machine],
    }
    for name, plan in pair.items():
        starting, products = estimate(plan)
        said = {c.name: c.seconds for c in plan.candidates}[plan.executor]
        np.testing.assert_allclose(starting + products, 1e3 * said, rtol=1e-6)
        axis.barh(name, starting, color=ORANGE)
        axis.barh(name, products, left=starting, color=BLUE)
        axis.text(starting + products, name, f" {starting + products:.0f}", va="center")
    axis.set_title(machine, loc="left", fontsize=10)
    axis.set_xlabel("training step, ms (estimated)")
    axis.margins(x=0.2)
    axis.tick_params(axis="y", length=0)
axes[0].invert_yaxis()
handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in (ORANGE, BLUE)]
names = ["starting kernels", "products"]
figure.legend(handles, names, ncols=2, frameon=False, loc="upper right")
figure.tight_layout(rect=(0, 0, 1, 0.92))
plt.show()

# %% [markdown]
# Mind the three scales, and the kind of number: a bound from data sheets, not a
# promise. It shows where the time of such a loop can go. On the CPU it is matrices as
# large as the weights, read or written anew at every step; on the GPU it is starting
# kernels, which is why to count products is a good start; on the TPU it is both.
#
# ## Where to go from here
#
# - `print(scanrnn.plan(step, init, xs))` for a step of yours; `plan.gemms` is the table
#   as data, and "Left in the loop" says why something did not move.
# - `scanrnn.Machine(...)` describes a device that has no row yet.
# - `make bench` and `make compiled`, in a checkout, measure this machine and compile
#   for others.
