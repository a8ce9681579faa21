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
# **Question: what do we gain if we move the matrix products of a time step out of its
# loop?**
#
# NVIDIA's guide [Optimizing Recurrent
# Layers](https://docs.nvidia.com/deeplearning/performance/dl-performance-recurrent/index.html)
# explains a fast LSTM by its matrix products (GEMMs): which products there are, how
# large they are, and which of them must wait for the step before. This notebook draws
# the same pictures for any step function, from the plans of scanrnn.
#
# There are four kinds of numbers here, and each figure says which kind it shows:
#
# - **counted** in a plan: exact, nothing is measured;
# - **compiled** here: the memory that the compiler reports for a program;
# - **benchmark**: measured medians from the committed report of a machine, which is
#   named;
# - **estimated** from a machine's data sheet: rough, and nothing runs.
#
# On two CPU cores this notebook runs in well under a minute, most of it compiling.

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
T, B, H = (20, 4, 16) if FAST else (128, 8, 128)

# Colours of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
PURPLE, GREY = "#CC79A7", "#999999"
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## The step
#
# This is an LSTM as in the papers, with one product for each gate, and an output head.
# It is the worst case for a machine: five small products in every step.


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
# This is the step as `jax.lax.scan` runs it. Each row of the table is a group of equal
# products. The path is "layer-to-layer" if a product does not read the carry,
# "recurrent" if the next carry depends on it, and "readout" if only outputs do. K is
# the size that is summed over. In the forward pass, M is the number of columns of the
# weights and N the number of rows of the data. The column "where" refers to the forward
# loop in the forward pass, and to the reverse loop in the gradients. Here everything is
# in the loop: each product in the forward loop, and its two gradients in the reverse
# loop.

# %%
before = planned(implementation="scan")
print(before)

# %% [markdown]
# And this is the step as scanrnn runs it. Each loop keeps one product per step: the
# recurrent product of all four gates. The products with the inputs run before the loop,
# and the output head after it. Each weight gradient is one product over all steps: its
# K was the batch, and is now batch times steps.

# %%
after = planned()
print(after)

# %% [markdown]
# These are the same numbers, counted from the two tables. The bars on the right show
# that the amount of arithmetic does not change: a plan moves work, it does not save
# any. But less than a third of the work still waits for the step before, and far fewer
# products have to be started.


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

# %%
flops = {name: sum(row.flops for row in plan.gemms) for name, plan in PLANS.items()}
waiting = sum(row.flops for row in after.gemms if row.where == "loop")
print(f"{waiting / flops['scanrnn']:.0%} of the arithmetic still waits")
assert flops["scanrnn"] == flops["lax.scan"] and waiting < flops["scanrnn"] / 3

# %% [markdown]
# ## One pass at a time
#
# Six passes made that plan. `scanrnn.Options` can switch off each of them:
#
# - `split` splits `concatenate([x, h]) @ W`, so that the half with `x` can leave the
#   loop;
# - `hoist` runs products that need only the inputs before the loop;
# - `merge` joins the products of the four gates;
# - `layout` reads each gate by its own slice, and reuses buffers;
# - `sink` runs the output head after the loop;
# - `defer` computes weight gradients after the reverse loop.
#
# Each program below is a whole compiled training step (forward, backward, update). All
# gradients agree with those of `lax.scan`.

# %%
PASSES = ("split", "hoist", "merge", "layout", "sink", "defer")
plans = {"lax.scan": before, "all passes": after}
plans |= {f"no {name}": planned(**{name: False}) for name in PASSES}
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


def per_step(plan):
    """GEMMs of one step in the forward and the reverse loop."""
    return sum(row.count for row in plan.gemms if row.where == "loop") / T


def temporaries(name):
    """Megabytes that the compiled program needs besides arguments and results."""
    return programs[name].memory_analysis().temp_size_in_bytes / 1e6


# %% [markdown]
# This notebook does not measure time. The committed benchmarks have a *ladder*: a
# series of programs, each with one more pass than the one before (`hoist` and `sink`
# come together). They are the points of the right panel below. The last of them also
# keeps less for the reverse loop, and is the default.

# %%
repository = pathlib.Path(scanrnn.__file__).parents[1]
results = json.loads(
    (repository / "benchmarks/results/amd-epyc-2-cores.json").read_text()
)
machine = results["machine_info"]
POINTS = {
    "lax.scan": "lax_scan",
    "+ split": "scanrnn:split+everything",
    "+ hoist, sink": "scanrnn:split+hoist+sink+everything",
    "+ merge": "scanrnn:split+hoist+sink+merge+everything",
    "+ defer": "scanrnn:split+hoist+sink+merge+defer+everything",
    "+ layout": "scanrnn:split+hoist+sink+merge+defer+layout+everything",
    "+ keep less": "scanrnn:split+hoist+sink+merge+defer+layout+minimal",
}


def ladder(**case):
    """A training step by contender: time relative to `lax.scan`, temporary MB."""
    (row,) = (
        row["contenders"]
        for row in results["rows"]
        if row["section"] == "ladder" and case.items() <= row["case"].items()
    )
    whole = row["lax_scan"]["train"]["median"]
    return {
        name: (one["train"]["median"] / whole, one["train"]["temp_bytes"] / 1e6)
        for name, one in row.items()
    }


LADDERS = {
    "LSTM, T=30, batch 32, 512 features": ladder(cell="lstm", H=512),
    "with norms and residual, same sizes": ladder(cell="ln_mi_res_lstm", H=512),
    "RNN, T=4096, batch 2, 128 features": ladder(cell="seed_rnn", T=4096),
}

# %%
shown = ("lax.scan", *(f"no {name}" for name in PASSES), "all passes")
panels = (
    (
        {name: per_step(plans[name]) for name in shown},
        "%.0f",
        "GEMMs per step\n(counted)",
    ),
    (
        {name: temporaries(name) for name in shown},
        "%.1f",
        "temporary memory, MB\n(compiled)",
    ),
)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), width_ratios=(2, 2, 3))
for axis, (values, form, label) in zip(axes, panels, strict=False):
    colors = [GREY, *[BLUE] * len(PASSES), GREEN]
    bars = axis.barh(shown, [values[name] for name in shown], color=colors)
    axis.bar_label(bars, fmt=form, padding=3)
    axis.set_xlabel(label)
    axis.margins(x=0.25)
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
axes[1].set_yticklabels([])
for (label, times), color in zip(LADDERS.items(), (BLUE, PURPLE, ORANGE), strict=True):
    heights = [times[name][0] for name in POINTS.values()]
    axes[2].plot(list(POINTS), heights, "o-", color=color, label=label)
axes[2].set_ylim(0, 1.7)
axes[2].legend(frameon=False, fontsize=8, loc="upper right")
axes[2].tick_params(axis="x", rotation=45)
axes[2].set_ylabel(f"time of a training step\n(benchmark: {machine['cpu']}, 2 cores)")
figure.tight_layout()
plt.show()

# %% [markdown]
# The two panels on the left show the effect of each pass:
#
# - without `hoist`, the products with the inputs stay in the loop, and so do their
#   gradients;
# - without `merge`, there are four products in the forward loop and four in reverse;
# - without `sink`, the output head and its gradient are in the loop again;
# - without `defer`, the recurrent weight gradient is in the loop again, and much more
#   is kept for it;
# - without `split`, the number of products is the same but they are larger: the half
#   with the inputs stays in the loop;
# - without `layout`, gates and their gradients need separate buffers, so the program
#   needs more memory.
#
# The panel on the right shows time. Compared with the point before it, `defer` reduces
# the time by a tenth or more for all three cells, and by half for the long RNN. The
# largest reduction comes from `split` for the LSTM, from `hoist` for the long RNN, and
# from keeping less for the cell with norms. A point may lie as high as the one before,
# or a little higher: regard points that differ by less than a tenth as equal.
# `scanrnn.plan(..., tune=True)` times the likely plans on your machine with your sizes,
# and takes the fastest.

# %%
assert per_step(after) == 2 and per_step(before) == 15
in_loops = {name: per_step(plans[f"no {name}"]) for name in PASSES}
assert in_loops == dict(split=2, hoist=14, merge=8, layout=2, sink=4, defer=3)
for name in PASSES:
    # With AVX-512, less memory is needed without `sink`: 0.90 of it.
    least = 0.85 if name == "sink" else 0.95
    assert FAST or temporaries(f"no {name}") > least * temporaries("all passes")
assert FAST or temporaries("no layout") > 1.5 * temporaries("all passes")
assert FAST or temporaries("no defer") > 2 * temporaries("all passes")
default, gains = POINTS["+ keep less"], []
for times in LADDERS.values():
    assert times[default] == min(times.values())
    heights = [times[name][0] for name in POINTS.values()]
    gains.append(dict(zip(list(POINTS)[1:], -np.diff(heights), strict=True)))
    merged, deferred = (times[POINTS[name]][0] for name in ("+ merge", "+ defer"))
    assert deferred < 0.9 * merged
most = [max(gain, key=gain.get) for gain in gains]
assert most == ["+ split", "+ keep less", "+ hoist, sink"]

# %% [markdown]
# ## Memory
#
# The reverse loop needs values of the forward loop: the residuals. The policy
# `scanrnn.Options(residuals=...)` says which of them are kept. The others are
# recomputed.
#
# - "minimal", the default on a CPU, keeps the results of products, and the carries.
# - "recompute" keeps the carries, and recomputes the gates for all steps of a chunk at
#   once: more products, less memory. Plans for a GPU and a TPU choose it where it pays.
# - "chunked" keeps the carries at the start of each of about sqrt(T) chunks of steps,
#   with the inputs of the chunk, and runs each chunk twice. It is for long sequences.
# - "everything" keeps all values that a derivative reads.
#
# The next table shows the price of each policy, for the first LSTM of the ladder. The
# residuals are counted here; time and temporaries are from the benchmark. A policy
# that you ask for is used even where `lax.scan` has the lower estimate.

# %%
cell = scanrnn.cells.lstm()
lstm = cell.init(jax.random.key(0), 512, 512)
inputs = jax.ShapeDtypeStruct((30, 32, 512), jnp.float32)
first = jax.eval_shape(lambda: cell.initial_carry(lstm, jnp.zeros((32, 512))))
ALL = POINTS["+ layout"].removesuffix("everything")
chosen = {}
for policy in ("lax.scan", "minimal", "recompute", "chunked", "everything"):
    plain = policy == "lax.scan"
    plan = scanrnn.plan(
        lambda c, x: cell.step(lstm, c, x),
        *(first, inputs),
        implementation="scan" if plain else "planned",
        residuals=None if plain else policy,
    )
    time = LADDERS["LSTM, T=30, batch 32, 512 features"]
    kept, measured = plan.residual_bytes[0] / 1e6, "lax_scan" if plain else ALL + policy
    chosen[policy] = (kept, *time[measured])

print("              kept, MB    time / lax.scan    temporaries, MB")
print("             (counted)        (benchmark)        (benchmark)")
for name, (kept, time, needed) in chosen.items():
    print(f"{name:<12} {kept:>9.2f} {time:>18.2f} {needed:>18.1f}")

# %% [markdown]
# A policy that keeps less does not need less memory at every moment: values that are
# recomputed for all steps at once need memory at that moment. "minimal" keeps more than
# "recompute", but its temporaries are smaller at this length.

# %%
figure, axis = plt.subplots(figsize=(7, 3))
colors = (GREY, GREEN, BLUE, ORANGE, PURPLE)
for (name, point), color, marker in zip(chosen.items(), colors, "Xo^sD", strict=True):
    axis.plot(*point[:2], marker, color=color, markersize=10, label=name, clip_on=False)
axis.set_xlabel("kept for the reverse loop, MB (counted)")
axis.set_ylabel("time of a training step\n/ lax.scan (benchmark)")
axis.set_xlim(0, 1.1 * max(kept for kept, *_ in chosen.values()))
axis.set_ylim(0, 1.1)
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
figure.tight_layout()
plt.show()

# %%
assert chosen["minimal"][0] < chosen["everything"][0]
assert chosen["recompute"][0] < chosen["minimal"][0] < chosen["lax.scan"][0]
assert chosen["minimal"][1] == min(time for _, time, _ in chosen.values())
assert chosen["minimal"][2] == min(needed for _, _, needed in chosen.values())

# %% [markdown]
# ## One step, three machines
#
# Which operations *can* leave the loop is the same on every machine. Which of these
# moves make the program *faster* depends on the machine. The planner reads a
# description of it, a `scanrnn.Machine`, so you do not need the machine itself:
# `machine="h100"` plans for a GPU on a laptop, and shapes can replace arrays. This step
# has two layer norms, and its sequence is long, so that every rule applies.


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
LOOPS = {"implementation": "planned"}  # also on an H100, where a kernel may be faster
on = {machine: plan_for(machine, **LOOPS) for machine in MACHINES}
print(on["cpu"].describe(long=True))

# %% [markdown]
# These are the reports for the other machines, without their tables: only
# the lines that differ from the first report. The machine "cpu" has the number of cores
# of the computer that ran this notebook; the other two machines are described by data
# sheets.

# %%
known = on["cpu"].describe(long=True).splitlines()
for machine in MACHINES[1:]:
    summary, table, *rest = on[machine].describe(long=True).split("\n\n")
    lines = "\n".join([summary, *rest]).splitlines()
    print(f"--- {machine}")
    print(*(line for line in lines if line not in known), sep="\n", end="\n\n")

# %% [markdown]
# These lines follow from the rules of the executor on each platform. A comment beside
# each rule in `scanrnn/executors/_xla.py` says what was observed. The last row is not a
# rule but a result: how many steps one iteration of the reverse loop takes.

# %%
RULES = {
    "overwrites": "reuse buffers that are no longer needed",
    "reads_gates_apart": "read each gate by its own slice",
    "transposes_weights": "transpose weights once, before the loop",
    "packs_gates": "stack the gates as one array",
    "row_tile": "fix the memory layout, step by step",
    "sums_gains_in_loop": "sum gradients of gains in the loop",
    "norm_share": "share of fast memory for norms at a time",
    "outside_bytes": "MB that may leave the loop at once",
}


def told(rules, rule):
    value = getattr(rules, rule)
    if isinstance(value, bool) or rule == "row_tile":
        return "yes" if value else "no"
    return "all" if value is None else f"{value / (1e6 if value > 1 else 1):.4g}"


def unroll_factor(plan):
    body = plan.bodies["in reverse"]
    return body.rows.trip_steps * body.unroll


print(" " * 62 + "".join(f"{machine:>9}" for machine in MACHINES))
for rule, meaning in RULES.items():
    cells = "".join(f"{told(on[machine].rules, rule):>9}" for machine in MACHINES)
    print(f"{rule:<19} {meaning:<42}{cells}")
factors = {machine: unroll_factor(on[machine]) for machine in MACHINES}
print(f"{'':<19} {'unroll factor of the reverse loop':<42}", end="")
print("".join(f"{factor:>9}" for factor in factors.values()))
for machine, factor in factors.items():
    text = on[machine].describe(long=True)
    assert (f"unrolled by {factor}" in text) == (factor > 1)
assert "4096 steps in chunks of 512 " in on["h100"].describe()
kept, without = on["h100"], plan_for("h100", residuals="minimal", **LOOPS)
assert round(without.residual_bytes[0] / kept.residual_bytes[0], 1) == 3

# %% [markdown]
# - **CPU.** Most time goes into memory and its caches. Gates are sliced from the whole
#   sequence. Norms are differentiated a few steps at a time, in the cache. Gradients of
#   gains are summed while their terms are still in the cache.
# - **GPU.** Most time goes into starting kernels. The loop is unrolled, so that one
#   kernel writes the results of several steps. Work that one kernel can do after the
#   loop is moved there. The sequence runs in eight chunks, and the gates of a chunk are
#   recomputed, so that a third of the bytes is kept for the reverse loop.
# - **TPU.** No buffer is reused step by step: such a write costs nearly as much as a
#   product. The sequence runs in chunks that fit the fast memory (VMEM). The gates of a
#   chunk are recomputed from the carries, for all its steps at once. The memory layout
#   is fixed, because otherwise the compiler would make time a minor axis and gather
#   every row.
#
# The estimates in the reports choose between a plan and `lax.scan`. The model is
# simple. Each product has three times: for starting its kernel, for its arithmetic and
# for its memory traffic. The largest of them counts. All other work counts as kernels
# to start, one or more in each step of each loop. `plan.cost` has the sums, and their
# total is the number in the reports.


# %%
def estimate(plan):
    """Milliseconds of starting kernels, and of the products themselves."""
    cost = plan.cost
    return 1e3 * cost.dispatch, 1e3 * (cost.arithmetic + cost.memory)


estimates = {}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.7), sharey=True)
for axis, machine in zip(axes, MACHINES, strict=True):
    pair = {
        "lax.scan": plan_for(machine, implementation="scan"),
        "scanrnn": on[machine],
    }
    for name, plan in pair.items():
        starting, products = estimate(plan)
        said = {c.name: c.seconds for c in plan.candidates}[plan.executor.name]
        np.testing.assert_allclose(starting + products, 1e3 * said, rtol=1e-6)
        estimates[machine, name] = starting, products
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
# Note the three different scales. These numbers are estimates from data sheets, not
# promises. They show where the time of such a loop can go.

# %%
starting, products = estimates["h100", "lax.scan"]
assert starting > products
starting, products = estimates["cpu", "lax.scan"]
assert products > starting
for machine in MACHINES:
    assert sum(estimates[machine, "scanrnn"]) < sum(estimates[machine, "lax.scan"])

# %% [markdown]
# ## What is surprising
#
# For the first step of this notebook, the number of operations in matrix products does
# not change at all, and yet the time does: the difference is *where* the products run.
# The best place depends on the machine. By estimate, a GPU spends most of the time of
# such a loop on starting kernels, so the number of kernels matters most. A CPU starts a
# product at almost no cost; it gains because matrices as large as the weights are no
# longer read and written at every step.
#
# ## Where to go from here
#
# - Call `print(scanrnn.plan(step, init, xs))` for your own step. `plan.gemms` is the
#   table as data, "Left in the loop" says why something did not move, and
#   `plan.describe(long=True)` has every decision.
# - `scanrnn.Machine(...)` describes a device that has no data sheet yet.
# - `make bench` and `make compiled`, in a checkout, measure your machine and compile
#   for others.
