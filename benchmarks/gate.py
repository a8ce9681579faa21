"""The correctness gate: a contender with a wrong answer gets no times."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cases, steps


class Answer(NamedTuple):
    """The results of one forward pass and one training step."""

    ys: np.ndarray
    loss: float
    gradients: dict[str, np.ndarray]


class Verdict(NamedTuple):
    """Whether a contender passed, its largest relative error, and of which result."""

    passed: bool
    error: float
    where: str

    def __str__(self):
        word = "ok" if self.passed else "FAILED"
        return f"{word}, {self.error:.1e} in {self.where}"


def mean_squared(ys, target):
    """Half the squared error, summed over features and averaged over all other axes."""
    return 0.5 * jnp.mean(jnp.sum((ys - target) ** 2, axis=-1))


@functools.lru_cache(maxsize=2)
def reference(case: cases.Case) -> Answer:
    """The naive step under `lax.scan`, differentiated by JAX, in float64.

    The dtype of the case plays no role: half precision has the same reference.
    """
    problem = cases.problem(case)
    apply = steps.unrolled(case.cell, jax.lax.scan)

    def loss_fn(weights, xs, target):
        ys = case.outputs(apply(weights, xs))
        return mean_squared(ys, target), ys

    with jax.enable_x64(True):
        weights, xs, target = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64),
            (problem.weights, problem.xs, problem.target),
        )
        (loss, ys), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(
            weights, xs, target
        )
        return Answer(np.asarray(ys), float(loss), jax.tree.map(np.asarray, grads))


def check(runner, case: cases.Case, tolerance: float | None = None) -> Verdict:
    """Runs one forward pass and one training step, and compares both.

    The gradients are computed from the *updated* weights: so the check covers exactly
    the training step that is timed. None takes the tolerance of the case's dtype.
    """
    problem = cases.problem(case)
    want = reference(dataclasses.replace(case, dtype="float32"))
    got, slack = answer(runner, problem.weights, problem.lr)
    return compare(got, want, slack, tolerance or cases.TOLERANCES[case.dtype])


def answer(runner, weights, lr: float) -> tuple[Answer, dict[str, float]]:
    """The answer of a runner, and how far rounding can put each gradient off.

    Args:
      runner: `ys()` gives outputs, `train()` the loss, and `weights()` the updated
        weights.
      weights: the weights before the update, by name, in float32.
      lr: the learning rate of the update.

    Returns:
      The answer, and for each gradient the largest error (2-norm) that comes from
      rounding the updated weights to float32.
    """
    ys, loss = runner.ys(), float(runner.train())
    updated, gradients, slack = runner.weights(), {}, {}
    for name, before in weights.items():
        before = np.asarray(before, np.float64)
        gradients[name] = (before - updated[name]) / lr
        slack[name] = np.finfo(np.float32).eps * np.linalg.norm(before) / lr
    return Answer(ys, loss, gradients), slack


def compare(got: Answer, want: Answer, slack, tolerance: float) -> Verdict:
    """The verdict by the largest relative error (2-norm) of all results."""
    errors = {"ys": _distance(got.ys, want.ys)}
    errors["loss"] = abs(got.loss - want.loss) / abs(want.loss)
    overall = np.sqrt(sum(np.sum(g**2) for g in want.gradients.values()))
    for name, gradient in want.gradients.items():
        ours, least = got.gradients[name], 1e-2 * overall
        errors[f"d {name}"] = _distance(ours, gradient, least, slack[name])
    where = max(errors, key=lambda key: np.nan_to_num(errors[key], nan=np.inf))
    # `not <=` instead of `>`, so that NaN fails.
    passed = bool(errors[where] <= tolerance)
    return Verdict(passed, float(errors[where]), where)


def _distance(got, want, floor=0.0, slack=0.0):
    if np.shape(got) != np.shape(want):
        return np.inf
    difference = np.linalg.norm(np.asarray(got, np.float64) - want) - slack
    return np.maximum(difference, 0) / max(np.linalg.norm(want), floor)
