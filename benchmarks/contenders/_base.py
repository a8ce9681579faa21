"""What a contender is, and what all those written in JAX share."""

import hashlib
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import Case, Problem
from benchmarks.gate import mean_squared

Weights = dict[str, np.ndarray]


class Contender(NamedTuple):
    """One way to run a case.

    Attributes:
      name: as in the tables.
      supports: `supports(case)` is None, or the reason why this cannot run it.
      setup: compiles the problem of that case and gives a `Runner`.
      computes: the case that is really run, and checked, in place of a case (a
        yardstick such as the stock LSTM for cells that its library lacks).
      model: the model of a problem, for contenders written in JAX.
    """

    name: str
    supports: Callable[[Case], str | None]
    setup: Callable[[Problem], "Runner"]
    computes: Callable[[Case], Case] = lambda case: case
    model: "Callable[[Problem], Model] | None" = None


class Runner(Protocol):
    """A compiled case. `forward` and `train` block until their result is there."""

    def forward(self) -> Any: ...

    def train(self) -> Any:
        """One forward, backward and update; the weights move. Returns the loss."""

    def ys(self) -> np.ndarray:
        """The outputs of `forward`, `[T, B, ..., H]` float32."""
        ...

    def weights(self) -> Weights:
        """The weights as they are now, by the names of the naive step."""
        ...


class Model(NamedTuple):
    """A cell in some JAX library.

    Attributes:
      params: a pytree of arrays.
      apply: `apply(params, xs) -> ys`, of all steps or of the last.
      export: params back to the names of the naive step.
      batch_major: xs and ys are `[B, T, ...]`, the library's own layout.
    """

    params: Any
    apply: Callable[[Any, jax.Array], jax.Array]
    export: Callable[[Any], Weights]
    batch_major: bool = False


class Compiled(NamedTuple):
    """An executable with what it cost to make and what memory it takes.

    `program` is the same for the same instructions, whatever wrote them.
    """

    call: Callable
    compile_seconds: float
    temp_bytes: int
    program: str


def compile_(fn, *args, donate=()) -> Compiled:
    """Traces, lowers and compiles `fn` for these arguments."""
    begin = time.perf_counter()
    executable = jax.jit(fn, donate_argnums=donate).lower(*args).compile()
    seconds = time.perf_counter() - begin
    memory = executable.memory_analysis()
    taken = memory.temp_size_in_bytes if memory else -1
    return Compiled(executable, seconds, taken, fingerprint(executable.as_text()))


def fingerprint(text: str) -> str:
    """A hash of the instructions of a program, without the lines they came from."""
    lines = (re.sub(r", metadata=\{.*?\}", "", line) for line in text.splitlines())
    instructions = "\n".join(line for line in lines if " = " in line)
    return hashlib.sha256(instructions.encode()).hexdigest()[:16]


class JaxRunner:
    """Forward and a donated training step of a `Model`, compiled ahead of time."""

    def __init__(self, problem: Problem, model: Model):
        self._model = model
        axes = (1, 0) if model.batch_major else (0, 1)
        order = *axes, *range(2, problem.xs.ndim)
        # Own copies: the params are donated, and NumPy memory may be shared.
        self._params = jax.tree.map(lambda a: jnp.array(a, copy=True), model.params)
        self._xs = jnp.array(problem.xs.transpose(order), copy=True)
        self._target = jnp.array(problem.target.transpose(order), copy=True)

        def apply(params, xs):
            return problem.case.outputs(model.apply(params, xs), model.batch_major)

        self.compiled = {
            "forward": compile_(apply, self._params, self._xs),
            "train": compile_(
                train_step(apply, problem.lr),
                self._params,
                self._xs,
                self._target,
                donate=0,
            ),
        }
        self._forward = self.compiled["forward"].call
        self._train = self.compiled["train"].call

    def forward(self):
        return self._forward(self._params, self._xs).block_until_ready()

    def train(self):
        self._params, loss = self._train(self._params, self._xs, self._target)
        return loss.block_until_ready()

    def ys(self):
        ys = np.asarray(self.forward(), np.float32)
        return ys.swapaxes(0, 1) if self._model.batch_major else ys

    def weights(self):
        return jax.tree.map(np.asarray, self._model.export(self._params))


def train_step(apply, lr):
    def step(params, xs, target):
        loss, grads = jax.value_and_grad(
            lambda params: mean_squared(apply(params, xs).astype(jnp.float32), target)
        )(params)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss

    return step


def to_compute_dtype(params, dtype, throughout=False):
    """Kernels in the compute dtype, vectors as they are or `throughout` like them."""
    return jax.tree.map(
        lambda p: p.astype(dtype) if throughout or p.ndim > 1 else p, params
    )


def split_joint(weights: Weights, in_features: int) -> tuple[np.ndarray, np.ndarray]:
    """The x rows and the h rows of a kernel over `[x; h]`."""
    return weights["w"][:in_features], weights["w"][in_features:]
