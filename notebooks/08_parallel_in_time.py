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
# # Parallel in time
#
# **Question: which loops over time need not run step by step?**
#
# In a loop over time, each step waits for the one before: step 1,000 cannot start
# before step 999 is done. But a step may be *affine* in its carry: `h' = A h + b`,
# where A and b depend on inputs alone. Then two consecutive steps can be combined into
# one step of the same form. In the same way, four steps can be combined, and finally
# all T steps. So the result is computed by a tree with about `log2 T` levels, and all
# operations of a level run at the same time.
#
# The planner reads the operations of a step, and proves whether it is affine in its
# carry. This notebook shows what it finds, how it runs such a loop, how exact the
# result is, and what it costs on a GPU and on a TPU.
#
# On two CPU cores this notebook runs in about a minute.

# %%
import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import scanrnn
from scanrnn.planner.parallel import affine

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
T, B, D = (32, 2, 16) if FAST else (2048, 8, 32)

# Colours of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## What is found
#
# You do not declare anything. Here is the loop that estimates advantages in most agents
# written in JAX. Its carry has two leaves. One is the advantage: each step multiplies
# it by a factor and adds a number, and both depend on inputs only. The other is the
# value of the next state. The loop runs backwards in time, so this value was an input
# of the iteration before.


# %%
def advantage(carry, transition):
    advantage, next_value = carry
    done, value, reward = transition
    delta = reward + 0.99 * next_value * (1 - done) - value
    advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
    return (advantage, value), advantage


rng = np.random.default_rng(0)
done = (rng.random((T, B)) < 0.05).astype(np.float32)
xs = jnp.asarray(done), *jnp.asarray(rng.normal(size=(2, T, B)), jnp.float32)
init = jnp.zeros(B), jnp.zeros(B)
plan = scanrnn.plan(advantage, init, xs, reverse=True, machine="h100")
print(f"on an H100 it is run by: {plan.executor.name}")
(line,) = (line for line in str(plan).splitlines() if line.startswith("Over time, "))
print(line)
assert line.endswith(f"float32[{B}] diagonal; float32[{B}] constant.")
assert plan.executor.name == "associative"

# %% [markdown]
# The next cell prints the kinds for that loop and for cells of scanrnn,
# forward and in reverse. This answers the question: every loop without a `sequential`
# leaf can run in parallel over time.
#
# - `constant`: the new value depends on inputs only.
# - `diagonal`: each number is multiplied by a factor, and then an input is added.
#   Neither depends on the carry.
# - `max-plus`: the larger of (old value + input) and another input.
# - `block`: groups of up to eight numbers depend on one another. In an LRU these are
#   the two parts of a complex number.
# - `sequential`: everything else. A gate of an SRU reads the carry, so its forward loop
#   must run step by step.
#
# The reverse loop of *every* cell is affine in its cotangents. But an LSTM and a
# deltanet couple more than eight numbers, so their reverse loops stay loops. (A
# deltanet can run in another way: as matrix products over chunks of steps.)


# %%
def kinds(graph, count):
    found = {k: group for group in affine.groups(graph) for k in group.leaves}
    return ", ".join(dict.fromkeys(found[k].kind for k in range(count)))


bodies = scanrnn.plan(advantage, init, xs, implementation="planned").bodies
loops = {"advantages": (bodies, 2)}
for name in ("mingru", "lru", "mlstm", "gla", "mamba2", "sru", "deltanet", "lstm"):
    cell = getattr(scanrnn.cells, name)()
    params = cell.init(jax.random.key(0), D, D)
    x = jnp.ones((T, B, D))
    carry = cell.initial_carry(params, x[0])
    step = functools.partial(cell.step, params)
    bodies = scanrnn.plan(step, carry, x, implementation="planned").bodies
    loops[name] = bodies, len(carry)
found = {
    name: [kinds(bodies[n].graph, count) for n in ("for values", "in reverse")]
    for name, (bodies, count) in loops.items()
}
for name, told in found.items():
    print(f"{name:10} forward: {told[0]:20} in reverse: {told[1]}")
assert found["mingru"] == ["diagonal", "diagonal"]
assert found["sru"] == ["sequential", "diagonal"]
assert found["lstm"] == found["deltanet"] == ["sequential", "sequential"]

# %%
fig, axes = plt.subplots(figsize=(7, 3.6))
for row, told in enumerate(found.values()):
    for side, kind in enumerate(told):
        color, ink = (GREY, "black") if "sequential" in kind else (BLUE, "white")
        axes.barh(row, 0.96, left=side, color=color, height=0.85)
        axes.text(side + 0.48, row, kind, color=ink, ha="center", va="center")
axes.set_yticks(range(len(found)), found)
axes.set_xticks([0.48, 1.48], ["forward loop", "reverse loop"])
axes.tick_params(length=0)
axes.xaxis.tick_top()
axes.spines[:].set_visible(False)
axes.invert_yaxis()
handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in (BLUE, GREY)]
labels = ("can run in parallel", "runs step by step")
fig.legend(handles, labels, ncols=2, frameon=False, loc="lower center")
fig.tight_layout(rect=(0, 0.07, 1, 1))
plt.show()

# %% [markdown]
# ## How it runs
#
# On a GPU and on a TPU `scanrnn.scan` runs such a loop in parallel automatically. On a
# CPU a parallel scan holds all carries in memory and is not always faster, so it runs
# only if you ask for it. The next cell asks for it. The program then has no loop.


# %%
def returns(implementation):
    return scanrnn.scan(
        advantage, init, xs, reverse=True, implementation=implementation
    )[1]


text = str(jax.make_jaxpr(functools.partial(returns, "associative"))())
print(f"loops left in the program: {text.count(' scan[')}")
difference = jnp.abs(returns("associative") - returns("scan")).max()
print(f"largest difference to lax.scan: {difference:.1e}")
assert " scan[" not in text and difference < 1e-3

# %% [markdown]
# ## How exact it is
#
# Sums are computed in another order, so rounding differs. The error at step t is at
# most `4 u (t + 2 log2 T) S_t`: u is the unit of rounding, and S is the same sum
# with every number replaced by its magnitude. The plot shows the error and the bound
# for a leaky sum whose factors are near one.


# %%
def leaky(h, x):
    h = x[0] * h + x[1]
    return h, h


factors = 1 - 1e-3 * np.abs(rng.normal(size=T))
inputs = rng.normal(size=T)
single = jnp.asarray(factors, jnp.float32), jnp.asarray(inputs, jnp.float32)
exact, size, e, s = np.zeros(T), np.zeros(T), 0.0, 0.0
for t, (a, b) in enumerate(zip(*map(np.float64, single), strict=True)):
    exact[t] = e = a * e + b
    size[t] = s = abs(a) * s + abs(b)
bound = 4 * 2.0**-24 * (np.arange(1, T + 1) + 2 * np.log2(T)) * size
fig, axes = plt.subplots(figsize=(6, 3.2))
for implementation, color in (("scan", GREY), ("associative", BLUE)):
    h = scanrnn.scan(leaky, jnp.zeros(()), single, implementation=implementation)[1]
    error = np.abs(np.float64(h) - exact)
    print(
        f"{implementation}: error at most {error.max():.1e}, "
        f"and at most {(error / bound).max():.1%} of the bound"
    )
    axes.semilogy(error + 1e-12, lw=0.7, color=color, label=implementation)
axes.semilogy(bound, "k--", label="4 u (t + 2 log2 T) S")
axes.set(xlabel="step", ylabel="error")
axes.legend(frameon=False)
fig.tight_layout()
plt.show()
inside = bool((error <= bound).all())
print(f"within the bound: {inside}")
assert inside

# %% [markdown]
# ## Cells that are not affine
#
# `scanrnn.solve` runs a nonlinear recurrence by Newton's method: it starts from a
# guess, and affine scans correct it. After k scans the first k steps are exact.
# Steps that have not converged are computed one by one, so the result is always that
# of the loop. A cell that forgets takes few iterations, and not many more for a longer
# sequence.

# %%
cell = scanrnn.cells.sru()
params = cell.init(jax.random.key(1), D, D)
x = jnp.asarray(rng.normal(size=(T, B, D)), jnp.float32)
carry, step = cell.initial_carry(params, x[0]), functools.partial(cell.step, params)
solve, taken = jax.jit(functools.partial(scanrnn.solve, step)), []
for length in (T // 16, T // 4, T):
    _, ys, solved = solve(carry, x[:length])
    taken.append(int(solved.iterations))
    print(f"{taken[-1]} iterations found {solved.steps} of {length} steps")
_, wanted = jax.lax.scan(step, carry, x)
print(f"largest difference to lax.scan: {jnp.abs(ys - wanted).max():.1e}")
assert jnp.abs(ys - wanted).max() < 1e-4
assert FAST or taken[-1] < 2 * taken[0] < T / 50

# %% [markdown]
# ## What it costs
#
# The compilers for an NVIDIA H100 and a TPU v5e give the number of kernels and the
# estimated cycles of a training step; nothing ran on these devices. The numbers are
# from the committed report, `benchmarks/results/parallel.json`. "By hand" is
# `jax.lax.associative_scan` with a gradient that was written for the loop.
#
# Left, a leaky sum with resets (B=8, D=64), from 128 steps to a million. The kernels of
# a loop grow with T, those of a parallel scan with log T. Right, several loops
# (T=2048, B=8, D=H=32).

# %%
repository = pathlib.Path(scanrnn.__file__).parents[1]
report = json.loads((repository / "benchmarks/results/parallel.json").read_text())
FORMS = {
    "lax.scan": (GREY, "s-"),
    "planned loops": (ORANGE, "^-"),
    "in parallel": (BLUE, "o-"),
    "associative_scan by hand": (GREEN, "d--"),
}


def compiled(by, number, **wanted):
    """A number of the compiled rows with all that is wanted, by another field."""
    rows = (row for row in report["rows"] if wanted.items() <= row.items())
    return dict(sorted((row[by], row[number]) for row in rows if number in row))


LEAKY = {"machine": "h100", "name": "leaky sum with resets", "B": 8, "D": 64}
TPU = {"machine": "v5e", "T": 2048, "B": 8, "D": 32}
kernels = {form: compiled("T", "launches", form=form, **LEAKY) for form in FORMS}
cycles = {form: compiled("name", "cycles", form=form, **TPU) for form in FORMS}
names = sorted(cycles["lax.scan"], key=cycles["lax.scan"].get)

fig, axes = plt.subplots(1, 2, figsize=(10.5, 3.8), width_ratios=(1, 1.2))
for form, (color, style) in FORMS.items():
    found = kernels[form]
    axes[0].loglog(list(found), list(found.values()), style, color=color, label=form)
    numbers = [cycles[form].get(name, np.nan) for name in names]
    axes[1].semilogx(numbers, names, style[0], color=color)
axes[0].set(xlabel="T", xticks=list(kernels["lax.scan"]))
axes[0].set_xticklabels([f"{steps:,}" for steps in kernels["lax.scan"]])
axes[0].set_xticks([], minor=True)
for axis, title in zip(axes, ("kernels started, H100", "cycles, TPU v5e"), strict=True):
    axis.set_title(title, loc="left", fontsize=10)
axes[0].legend(frameon=False, loc="upper left", fontsize=9)
fig.tight_layout()
plt.show()
few, many = min(kernels["in parallel"]), max(kernels["in parallel"])
added = kernels["in parallel"][many] - kernels["in parallel"][few]
print(f"{many:,} steps start {kernels['in parallel'][many]} kernels in parallel,")
print(f"{added / np.log2(many / few):.1f} more for each doubling of {few} steps;")
print(f"lax.scan starts {kernels['lax.scan'][many]:,}")
assert kernels["in parallel"][many] < 1e-4 * kernels["lax.scan"][many]
for name in names:
    share = cycles["in parallel"][name] / cycles["lax.scan"][name]
    print(f"{name}: in parallel {share:.3f} of the cycles of lax.scan")
    assert share < 0.2

# %% [markdown]
# ## What is surprising
#
# The gradient of a loop can be easier than the loop. The forward loop of an SRU is a
# chain, because a gate reads the carry. Its reverse loop is diagonal, so it can be a
# tree. And a loop in other people's code that looks sequential, such as the loop for
# advantages, does not have to be a loop at all.
