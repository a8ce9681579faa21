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
# where A and b depend on inputs alone. Then two steps in a row are one step of the
# same form, and so are four steps, and all of them. The chain becomes a tree of
# depth `log2 T` up, and the same depth down.
#
# The planner proves this for a step from its graph. This notebook shows what it
# finds, how it runs such a loop, how exact the result is, and what it costs on a GPU
# and on a TPU.
#
# On two CPU cores this notebook runs in about a minute.

# %%
import functools
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import scanrnn
from scanrnn.planner import affine

FAST = os.environ.get("SCANRNN_FAST") == "1"  # small shapes, for the tests
T, B, D = (32, 2, 16) if FAST else (2048, 8, 32)

# %% [markdown]
# ## What is found
#
# You do not declare anything. Here is the loop that estimates advantages in most
# agents written in JAX. Its carry has two leaves. One is the accumulator, which is
# multiplied by something before something is added. The other is the value of the
# next state, which is an input of the previous step of the loop.


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
print(f"on an H100 it is run by: {plan.executor}")
print(str(plan).splitlines()[-1])
assert plan.executor == "associative"

# %% [markdown]
# Here are cells, forward and in reverse. The reverse loop of *every* cell is affine
# in its cotangents. A gate of an SRU reads the carry, so its forward loop is a
# chain, but its gradient is not.


# %%
def kinds(graph, count):
    found = {k: group for group in affine.groups(graph) for k in group.leaves}
    return ", ".join(dict.fromkeys(found[k].kind for k in range(count)))


found = {}
for name in ("mingru", "lru", "mlstm", "gla", "mamba2", "sru", "deltanet", "lstm"):
    cell = getattr(scanrnn.cells, name)()
    params = cell.init(jax.random.key(0), D, D)
    x = jnp.ones((T, B, D))
    carry = cell.initial_carry(params, x[0])
    step = functools.partial(cell.step, params)
    bodies = scanrnn.plan(step, carry, x, implementation="planned").bodies
    told = [kinds(bodies[n].graph, len(carry)) for n in ("for values", "in reverse")]
    found[name] = told
    print(f"{name:10} forward: {told[0]:20} in reverse: {told[1]}")
assert found["mingru"] == ["diagonal", "diagonal"]
assert found["sru"] == ["sequential", "diagonal"]

# %% [markdown]
# ## How it runs
#
# On a GPU and on a TPU `scanrnn.scan` runs such a loop in parallel by itself. On
# this CPU a loop is faster, so you have to ask for the parallel scan. There is no
# loop left in the program.


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
# most `c u (t + 2 log2 T) S_t`: u is the unit of rounding, and S is the same sum
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
fig, axes = plt.subplots(figsize=(6, 3.5))
for implementation in ("scan", "associative"):
    h = scanrnn.scan(leaky, jnp.zeros(()), single, implementation=implementation)[1]
    error = np.abs(np.float64(h) - exact)
    axes.semilogy(error + 1e-12, lw=0.7, label=implementation)
bound = 2.0**-24 * (np.arange(1, T + 1) + 2 * np.log2(T)) * size
axes.semilogy(bound, "k--", label="u (t + 2 log2 T) S")
axes.set(xlabel="step", ylabel="error")
axes.legend()
plt.show()
inside = bool((error <= 4 * bound).all())
print(f"within the bound: {inside}")
assert inside

# %% [markdown]
# ## Cells that are not affine
#
# `scanrnn.solve` runs a nonlinear recurrence by Newton's method: it starts from a
# guess, and affine scans correct it. After k scans the first k steps are exact.
# Steps that are not found are computed one by one, so the result is always that of
# the loop. A cell that forgets takes few iterations, whatever T is.

# %%
cell = scanrnn.cells.sru()
params = cell.init(jax.random.key(1), D, D)
x = jnp.asarray(rng.normal(size=(T, B, D)), jnp.float32)
carry, step = cell.initial_carry(params, x[0]), functools.partial(cell.step, params)
_, ys, solved = jax.jit(functools.partial(scanrnn.solve, step))(carry, x)
_, wanted = jax.lax.scan(step, carry, x)
print(f"{solved.iterations} iterations found {solved.steps} of {T} steps")
print(f"largest difference to lax.scan: {jnp.abs(ys - wanted).max():.1e}")
assert jnp.abs(ys - wanted).max() < 1e-4 and solved.iterations < T

# %% [markdown]
# ## What it costs
#
# This is the cost of training a minGRU (B=8, D=H=32). The compilers for an NVIDIA
# H100 and a TPU v5e give the number of kernels and the estimated cycles; nothing
# ran on these devices. The numbers of a loop grow with T, those of a parallel scan
# with the logarithm of T.

# %%
LAUNCHES = {
    "lax.scan": {128: 2186, 1024: 17418, 2048: 34826, 8192: 139274},
    "planned loops": {128: 183, 1024: 1568, 2048: 2856, 8192: 10536},
    "in parallel": {128: 22, 1024: 31, 2048: 32, 8192: 41},
}
CYCLES = {
    "lax.scan": {128: 1630880, 1024: 14853502, 8192: 119127888},
    "planned loops": {128: 616796, 1024: 4821986, 8192: 38821259},
    "in parallel": {128: 115931, 1024: 311496, 8192: 1463207},
}
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5))
titles = ("kernels started, H100", "cycles, TPU v5e")
for axis, table, title in zip(axes, (LAUNCHES, CYCLES), titles, strict=True):
    for name, row in table.items():
        axis.loglog(list(row), list(row.values()), "o-", label=name)
    axis.set(xlabel="T", title=title)
    axis.legend()
plt.show()
share = LAUNCHES["in parallel"][2048] / LAUNCHES["lax.scan"][2048]
print(f"kernels at T=2048: {share:.4f} of lax.scan's")
assert share < 0.001

# %% [markdown]
# ## What surprised
#
# The gradient of a loop can be easier than the loop. The forward loop of an SRU is a
# chain, because a gate reads the carry. Its reverse loop is diagonal, so it can be a
# tree. And a loop in other people's code that looks sequential, such as the loop for
# advantages, does not have to be a loop at all.
