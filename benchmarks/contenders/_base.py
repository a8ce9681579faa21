"""What a contender is, and what all contenders in JAX share."""

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
      name: its name in the tables.
      supports: `supports(case)` is None, or the reason why it cannot run the case.
      setup: `setup(problem)` compiles the case and gives a `Runner`.
      computes: `computes(case)` is the case that is run and checked instead: torch's
        stock LSTM is a yardstick for cells that torch lacks.
      model: `model(problem)` gives the `Model`, for contenders written in JAX.
      runs_as: the name of the contender whose program this is, if it is another's.
    """

    name: str
    supports: Callable[[Case], str | None]
    setup: Callable[[Problem], "Runner"]
    computes: Callable[[Case], Case] = lambda case: case
    model: "Callable[[Problem], Model] | None" = None
    runs_as: str | None = None


class Runner(Protocol):
    """A compiled case. `forward` and `train` wait until their result is computed."""

    def forward(self) -> Any: ...

    def train(self) -> Any:
        """Does one forward pass, backward pass and update, and gives the loss."""

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
      apply: `apply(params, xs) -> ys`, the outputs of all steps or of the last.
      export: `export(params)` gives the weights by the names of the naive step.
      batch_major: whether xs and ys are `[B, T, ...]`, the library's own layout.
    """

    params: Any
    apply: Callable[[Any, jax.Array], jax.Array]
    export: Callable[[Any], Weights]
    batch_major: bool = False


class Compiled(NamedTuple):
    """A compiled function, its compile time in seconds, and its temporaries in bytes.

    `program` is a hash of its instructions: equal programs have equal hashes.
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
    """A hash of the instructions of a program, without their places in the source.

    Instructions are numbered in their order: the numbers in XLA's names differ between
    two compilations of one program.
    """
    lines = (re.sub(r", metadata=\{.*?\}", "", line) for line in text.splitlines())
    instructions = "\n".join(line for line in lines if " = " in line)
    numbers: dict[str, str] = {}
    numbered = re.sub(
        r"%[\w.-]+",
        lambda name: numbers.setdefault(name[0], f"%{len(numbers)}"),
        instructions,
    )
    return hashlib.sha256(numbered.encode()).hexdigest()[:16]


class JaxRunner:
    """The forward pass and the training step of a `Model`, compiled ahead of time.

    The training step takes the params as donated arguments.
    """

    def __init__(self, problem: Problem, model: Model):
        self._model = model
        axes = (1, 0) if model.batch_major else (0, 1)
        order = *axes, *range(2, problem.xs.ndim)
        # Copies, because params are donated and JAX may share the memory of NumPy.
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
    """Kernels in the compute dtype; with `throughout`, vectors too."""
    return jax.tree.map(
        lambda p: p.astype(dtype) if throughout or p.ndim > 1 else p, params
    )


def split_joint(weights: Weights, in_features: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows for x and the rows for h of a kernel over `[x; h]`."""
    return weights["w"][:in_features], weights["w"][in_features:]
