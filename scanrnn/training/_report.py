"""What a run leaves to look at: its numbers, its curve, and how its step is planned."""

import csv
import functools
import io
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from scanrnn import _scan, cells
from scanrnn.training._files import replaced
from scanrnn.training._model import CharLM, zero_carry
from scanrnn.training._step import TrainState, TrainStep


class Row(NamedTuple):
    """One line of `metrics.csv`, for one training step.

    Attributes:
        step: Steps taken.
        bits: Training loss of the step, in bits per character.
        held_out: Bits per character of the held-out text, where it was evaluated.
        seconds: Time spent training until then, over all sessions of the run.
    """

    step: int
    bits: float
    held_out: float | None
    seconds: float


def write_metrics(path: Path, history: Sequence[Row]) -> None:
    """Writes the history of a run as comma-separated values.

    Args:
        path: The file, replaced at once if it is there.
        history: One row per step.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "metrics.csv"
        ...     write_metrics(path, [Row(1, 6.5, None, 0.25)])
        ...     print(path.read_text())
        step,bits,held_out,seconds
        1,6.5,,0.25
    """
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([Row._fields, *history])
    with replaced(path) as partial:
        partial.write_text(lines.getvalue())


def draw_losses(path: Path, history: Sequence[Row]) -> bool:
    """Draws the loss curve of a run.

    Args:
        path: The PNG file to write.
        history: One row per step.

    Returns:
        Whether it was drawn: not without matplotlib.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "loss.png"
        ...     draw_losses(path, [Row(1, 6.5, 6.0, 0.2)]) == path.exists()
        True
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    held_out = [(row.step, row.held_out) for row in history if row.held_out is not None]
    axes.plot(
        [row.step for row in history],
        [row.bits for row in history],
        label="training, each step",
        color="0.7",
        linewidth=0.8,
    )
    axes.plot(
        *zip(*held_out, strict=True),
        label="held-out text",
        color="tab:blue",
        marker="o",
    )
    axes.set(xlabel="step", ylabel="bits per character", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    with replaced(path) as partial:
        figure.savefig(partial, dpi=120, format="png")
    return True


def layer_plans(model: CharLM, batch: int, window: int) -> str:
    """Prints the plan of every layer's time step, as training runs it.

    Args:
        model: The model.
        batch: Number of streams `B`.
        window: Steps of one window `T`.

    Returns:
        The plans as text; layers with the same plan share one.

    Example:
        >>> from scanrnn.training import Config, layer_plans, make_model
        >>> config = Config(features=8, dtype="float32")
        >>> model = make_model(config, symbols=30)
        >>> print(layer_plans(model, batch=2, window=5).splitlines()[0])
        layers 1, 2
    """
    ids = jax.ShapeDtypeStruct((window, batch), jnp.int32)
    xs = jax.eval_shape(model.embed, ids)
    carries = zero_carry(model, batch)
    layers: dict[str, list[str]] = {}
    for number, step in enumerate(_layer_steps(model), start=1):
        carry = carries if model.rnn.num_layers == 1 else carries[number - 1]
        plan = _scan.plan(step, carry, jnp.zeros(xs.shape, xs.dtype))
        layers.setdefault(str(plan), []).append(str(number))
        _, xs = jax.eval_shape(functools.partial(_scan.scan, step), carry, xs)
    return "\n\n".join(
        f"layer{'s'[: len(numbers) > 1]} {', '.join(numbers)}\n{plan}"
        for plan, numbers in layers.items()
    )


def _layer_steps(model: CharLM) -> list[Callable]:
    """Returns the time step of every layer, with its parameters in it."""
    cell = cells.residual(model.rnn.cell)
    return [
        functools.partial(cell.step, {name: p[...] for name, p in params.items()})
        for params in model.rnn.layers
    ]


class Timing(NamedTuple):
    """How long a training step takes.

    Attributes:
        median: Median seconds of a call, the first one left out.
        bits: Loss of the first call, to see that the contenders agree.
    """

    median: float
    bits: float


def time_steps(
    steps: dict[str, TrainStep],
    state: TrainState,
    window: tuple[np.ndarray, np.ndarray],
    rounds: int = 10,
) -> dict[str, Timing]:
    """Times training steps against each other, taking turns.

    Args:
        steps: Name and step function of each contender.
        state: The state that all start from; it is left as it is.
        window: Inputs and targets of shape `[T, B]`.
        rounds: How many calls of each are timed.

    Returns:
        Name and timing of each contender.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Config, init_state, make_model, make_train_step
        >>> config = Config(features=8, batch=2)
        >>> model = make_model(config, symbols=30)
        >>> ids = np.zeros([4, 2], np.int32)
        >>> steps = {"ours": make_train_step(config, model)}
        >>> state = init_state(config, model)
        >>> time_steps(steps, state, (ids, ids), rounds=1)["ours"].median > 0
        True
    """
    states = {name: jax.tree.map(jnp.copy, state) for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    bits = {}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            states[name], loss = jax.block_until_ready(step(states[name], *window))
            seconds[name].append(time.perf_counter() - start)
            if turn == 0:
                bits[name] = float(loss)
    return {
        name: Timing(statistics.median(times[1:]), bits[name])
        for name, times in seconds.items()
    }


def timing_table(timings: dict[str, Timing], characters: int) -> Table:
    """Lays timings out side by side, against the last of them.

    Args:
        timings: Name and timing of each contender.
        characters: Characters read by one step.

    Returns:
        A table for `rich`. No ratio is given where the losses disagree.

    Example:
        >>> timings = {"ours": Timing(0.1, 3.0), "theirs": Timing(0.3, 3.0)}
        >>> [list(column.cells) for column in timing_table(timings, 2048).columns][-1]
        ['3.00x', '1.00x']
    """
    table = Table(title="the same training step, taking turns")
    for name in ("", "ms per step", "chars/s", "loss, bits", "speed"):
        table.add_column(name, justify="right")
    *_, base = timings.values()
    for name, timing in timings.items():
        agree = np.isclose(timing.bits, base.bits, rtol=1e-2)
        table.add_row(
            name,
            f"{1e3 * timing.median:.1f}",
            f"{characters / timing.median:,.0f}",
            f"{timing.bits:.4f}",
            f"{base.median / timing.median:.2f}x" if agree else "losses differ",
        )
    return table
