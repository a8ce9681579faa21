"""The plan of each layer of a model, and the time that its training step takes."""

import functools
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from scanrnn import _scan
from scanrnn.planner import Plan
from scanrnn.training._model import LanguageModel, layers_of, zero_carry
from scanrnn.training._step import TrainState, TrainStep


def layer_plans(
    model: LanguageModel, batch: int, window: int, *, long: bool = False
) -> str:
    """Describes the plan of every layer's time step, as training runs it.

    Args:
        model: The model.
        batch: Number of streams `B`.
        window: Steps of one window `T`.
        long: Whether to list every decision, as `Plan.describe(long=True)` does.

    Returns:
        The plans as text. Layers with the same plan share one entry.

    Example:
        >>> from scanrnn.training import Config, layer_plans, make_model
        >>> config = Config(features=8, precision="float32")
        >>> model = make_model(config, symbols=30)
        >>> print(layer_plans(model, batch=2, window=5).splitlines()[0])
        layers 1, 2
    """
    return describe(plans_of_layers(model, batch, window), long=long)


def describe(plans: list[Plan], *, long: bool) -> str:
    """Returns the plans of layers as text. Equal plans are written once."""
    layers: dict[str, list[str]] = {}
    for number, plan in enumerate(plans, start=1):
        layers.setdefault(plan.describe(long=long), []).append(str(number))
    return "\n\n".join(
        f"layer{'s'[: len(numbers) > 1]} {', '.join(numbers)}\n{plan}"
        for plan, numbers in layers.items()
    )


def plans_of_layers(model: LanguageModel, batch: int, window: int) -> list[Plan]:
    """Plans the time step of every layer, without running it."""
    ids = jax.ShapeDtypeStruct((window, batch), jnp.int32)
    xs = jax.eval_shape(model.embed, ids)
    carries = zero_carry(model, batch)
    plans = []
    for number, (cell, params) in enumerate(layers_of(model)):
        step = functools.partial(cell.step, params)
        carry = carries if model.rnn.num_layers == 1 else carries[number]
        plans.append(_scan.plan(step, carry, jnp.zeros(xs.shape, xs.dtype)))
        _, xs = jax.eval_shape(functools.partial(_scan.scan, step), carry, xs)
    return plans


class Timing(NamedTuple):
    """How long a training step takes.

    Attributes:
        median: Median time of a call in seconds, without the first call.
        loss: The loss of the first call, to check that all contenders agree.
    """

    median: float
    loss: float


def time_steps(
    steps: dict[str, TrainStep],
    state: TrainState,
    batch: Any,
    rounds: int = 10,
) -> dict[str, Timing]:
    """Times training steps against each other: they are called in turns.

    Args:
        steps: The training step of each contender, by name.
        state: The state that all start from. It is copied.
        batch: The batch of every call.
        rounds: Number of timed calls of each contender, after one call that compiles.

    Returns:
        The timing of each contender, by name.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Config, Window, make_model, make_training
        >>> config = Config(features=8, batch=2)
        >>> state, step = make_training(config, make_model(config, symbols=30))
        >>> ids = np.zeros([4, 2], np.int32)
        >>> times = time_steps({"ours": step}, state, Window(ids, ids), rounds=1)
        >>> times["ours"].median > 0
        True
    """
    states = {name: jax.tree.map(jnp.copy, state) for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses = {}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            result = jax.block_until_ready(step(states[name], batch))
            seconds[name].append(time.perf_counter() - start)
            states[name], metrics = result
            if turn == 0:
                losses[name] = float(metrics.loss)
    return {
        name: Timing(statistics.median(times[1:]), losses[name])
        for name, times in seconds.items()
    }


def timing_table(timings: dict[str, Timing], tokens: int) -> Table:
    """Makes a table of timings, with the speed of each relative to the last.

    Args:
        timings: The timing of each contender, by name.
        tokens: Tokens that one training step reads.

    Returns:
        A table for `rich`. It has no speed where the losses differ by more than 1%.

    Example:
        >>> timings = {"ours": Timing(0.1, 3.0), "theirs": Timing(0.3, 3.0)}
        >>> [list(column.cells) for column in timing_table(timings, 2048).columns][-1]
        ['3.00x', '1.00x']
    """
    table = Table(title="the same training step, taking turns")
    for name in ("", "ms per step", "tokens/s", "loss", "speed"):
        table.add_column(name, justify="right")
    *_, base = timings.values()
    for name, timing in timings.items():
        agree = np.isclose(timing.loss, base.loss, rtol=1e-2)
        table.add_row(
            name,
            f"{1e3 * timing.median:.1f}",
            f"{tokens / timing.median:,.0f}",
            f"{timing.loss:.4f}",
            f"{base.median / timing.median:.2f}x" if agree else "losses differ",
        )
    return table
