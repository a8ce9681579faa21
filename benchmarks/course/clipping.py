"""Clipping as the course page shows it: a network whose weights start too large.

`RNN(64, 128)` with its recurrent weights times three, random data, plain gradient
descent: the norm of the gradient before and after clipping, without a bound and with
the two ends of the page's range. torch draws weights and data from the page's seed.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

from benchmarks.tables import table
from scanrnn.interop import from_torch

TITLE = "Clipping"
ABOUT = """\
`RNN({D}, {H})` from torch's seed 42, recurrent weights times 3, x ({B}, {T}, {D}), y
({B}, {T}, {H}), mean squared error, gradient descent with rate 0.01: the global norm of
the gradient before and after it is clipped, ours and torch's. The page promises that
the norm after clipping is at most the bound, which is checked in all {steps} steps. It
also says that clipping is not optional: the losses of the last step say what a bound
gives here. Such a network is chaotic, so what rounding changes grows with the steps."""
SIZES = {"B": 16, "T": 50, "D": 64, "H": 128}
QUICK = {"B": 2, "T": 4, "D": 3, "H": 5}
STEPS, RATE = 50, 0.01
SHOWN = (1, 2, 3, 4, 5, STEPS)
BOUNDS = (math.inf, 1.0, 5.0)


def start(sizes: dict) -> tuple[torch.nn.RNN, torch.Tensor, torch.Tensor]:
    """The page's network with its inputs and targets."""
    B, T, D, H = sizes.values()
    torch.manual_seed(42)
    rnn = torch.nn.RNN(D, H, batch_first=True)
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(3.0)
    return rnn, torch.randn(B, T, D), torch.randn(B, T, H)


def theirs(sizes: dict, bound: float) -> list[dict]:
    """Loss and norms of torch's steps."""
    rnn, xs, target = start(sizes)
    weights = list(rnn.parameters())
    sgd = torch.optim.SGD(weights, RATE)
    steps = []
    for _ in range(STEPS):
        sgd.zero_grad()
        loss = torch.nn.functional.mse_loss(rnn(xs)[0], target)
        loss.backward()
        before = torch.nn.utils.clip_grad_norm_(weights, bound)
        after = torch.nn.utils.get_total_norm([w.grad for w in weights])
        sgd.step()
        numbers = loss, before, after
        steps.append(_step(*(float(number.detach()) for number in numbers)))
    return steps


def ours(sizes: dict, bound: float) -> list[dict]:
    """Loss and norms of our steps, from the same weights.

    torch has two biases, and each takes the gradient's step. So our one bias is given
    twice the update, and its gradient counts twice in the norm.
    """
    rnn, xs, target = start(sizes)
    graph, params = nnx.split(from_torch(rnn).layer())
    xs, target = (jnp.asarray(array.numpy()) for array in (xs, target))

    @jax.jit
    def step(params):
        def loss_fn(params):
            return jnp.mean((nnx.merge(graph, params)(xs) - target) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        twice = jax.tree.map(lambda g: jnp.sqrt(2.0) * g if g.ndim == 1 else g, grads)
        before = optax.tree.norm(twice)
        factor = jnp.minimum(1.0, bound / before)
        params = jax.tree.map(
            lambda p, g: p - RATE * factor * (2 if g.ndim == 1 else 1) * g,
            params,
            grads,
        )
        return params, (loss, before, factor * before)

    steps = []
    for _ in range(STEPS):
        params, numbers = step(params)
        steps.append(_step(*map(float, numbers)))
    return steps


def _step(loss, before, after):
    return {"loss": loss, "before": before, "after": after}


def measure(quick: bool = False) -> dict:
    """The steps of both, for each bound.

    Raises:
      AssertionError: if ours are not torch's, or a norm after clipping is too large.
    """
    sizes = QUICK if quick else SIZES
    rows = []
    for bound in BOUNDS:
        found = {"ours": ours(sizes, bound), "torch": theirs(sizes, bound)}
        for number, (mine, other) in enumerate(zip(*found.values(), strict=True)):
            # The network is chaotic: only the first norms are equal to rounding.
            np.testing.assert_allclose(mine["loss"], other["loss"], rtol=0.02)
            if number == 0:
                np.testing.assert_allclose(mine["before"], other["before"], rtol=1e-3)
            assert max(mine["after"], other["after"]) <= bound * 1.0001
        shown = {who: [steps[n - 1] for n in SHOWN] for who, steps in found.items()}
        rows.append({"bound": None if bound == math.inf else bound} | shown)
    return {"sizes": sizes, "rows": rows}


def report(found: dict) -> list[str]:
    """The part of the page, in Markdown."""
    lines = []
    for row, (place, number) in itertools.product(found["rows"], enumerate(SHOWN)):
        bound = "none" if row["bound"] is None else f"{row['bound']:g}"
        cells = []
        for who in ("ours", "torch"):
            step = row[who][place]
            cells.append(f"{step['before']:.4g} -> {step['after']:.4g}")
            cells.append(f"{step['loss']:.4g}")
        lines.append([bound, str(number), *cells])
    heads = ("bound", "step", "ours", "loss", "torch", "loss")
    return [ABOUT.format(steps=STEPS, **found["sizes"]), table(heads, lines)]
