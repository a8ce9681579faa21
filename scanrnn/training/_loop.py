"""The training run: from a config to everything it leaves in its folder."""

import collections
import dataclasses
import math
import statistics
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from scanrnn.training import _report
from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._config import Config
from scanrnn.training._data import Streams, Vocabulary, load_text
from scanrnn.training._interruption import Interruption
from scanrnn.training._model import CharLM, generate, make_model
from scanrnn.training._report import Row
from scanrnn.training._step import (
    TrainState,
    TrainStep,
    init_state,
    make_evaluate,
    make_train_step,
)

# What may change between two sessions of one run: nothing that decides its numbers.
_FREE = {"out", "evaluate_every", "sample", "temperature"}


class Outcome(NamedTuple):
    """How a call of `train` ended.

    Attributes:
        step: Steps taken in all.
        bits: Bits per character on the held-out text, where last evaluated.
        signal: The signal that stopped it, None if it is finished.
    """

    step: int
    bits: float | None
    signal: int | None


@dataclasses.dataclass
class _Run:
    """A run in memory: what does not change, then what a checkpoint holds."""

    config: Config
    text: str
    vocabulary: Vocabulary
    streams: Streams
    held_out: Streams
    model: CharLM
    train_step: TrainStep
    checkpoints: Checkpoints
    state: TrainState
    step: int = 0
    position: int = 0
    history: list[Row] = dataclasses.field(default_factory=list)

    @property
    def notes(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config),
            "symbols": self.vocabulary.symbols,
            "text": zlib.crc32(self.text.encode()),
            "position": self.position,
            "history": [list(row) for row in self.history],
        }

    @property
    def bits(self) -> float | None:
        held_out = [row.held_out for row in self.history if row.held_out is not None]
        return held_out[-1] if held_out else None

    @property
    def out(self) -> Path:
        return Path(self.config.out)

    def save(self) -> None:
        self.checkpoints.save(self.step, self.state, self.notes)
        _report.write_metrics(self.out / "metrics.csv", self.history)


def train(
    config: Config, *, restart: bool = False, console: Console | None = None
) -> Outcome:
    """Trains a character language model, or goes on with a run that was stopped.

    The folder `config.out` gets a checkpoint, `metrics.csv`, `loss.png`, `sample.txt`
    and `plan.txt`. SIGINT and SIGTERM end the run with a checkpoint; the next call goes
    on from it and gives, on a CPU, the very numbers of a run that was not stopped.

    Args:
        config: Options of the run.
        restart: Delete the checkpoints in the folder and start again.
        console: Where to print; None for the standard output.

    Returns:
        How it ended.

    Raises:
        ValueError: If the folder holds a run with other options or another text, or its
            checkpoint cannot be read.
        FloatingPointError: If the loss is no longer finite.

    Example:
        >>> import tempfile
        >>> from scanrnn.training import Config, train
        >>> with tempfile.TemporaryDirectory() as out:
        ...     config = Config(out=out, features=8, batch=2, window=8, steps=0)
        Traceback (most recent call last):
            ...
        ValueError: steps: got 0, want at least 1
    """
    console = console or Console(markup=False, highlight=False, soft_wrap=True)
    run = _open(config, restart)
    if run.step >= config.steps and (run.out / "sample.txt").exists():
        console.print(
            f"{run.out} is finished: {run.step} steps, {run.bits:.3f} bits per "
            "character on held-out text. Start again with --restart, or elsewhere "
            "with --out FOLDER."
        )
        return Outcome(run.step, run.bits, None)
    console.print(
        f"{'Going on after step ' + str(run.step) if run.step else 'Training'}: "
        f"{len(run.streams.ids):,} characters to train on, "
        f"{len(run.held_out.ids):,} held out, {len(run.vocabulary)} symbols, "
        f"{sum(leaf.size for leaf in jax.tree.leaves(run.state.params)):,} parameters"
    )
    with Interruption() as interruption:
        _train(run, interruption, console)
        run.save()
    _report.draw_losses(run.out / "loss.png", run.history)
    if interruption.signal is not None:
        console.print(
            f"Stopped after step {run.step} of {config.steps}; the checkpoint is in "
            f"{run.checkpoints.folder}. Run the same command again to go on."
        )
        return Outcome(run.step, run.bits, interruption.signal)
    _finish(run, console)
    return Outcome(run.step, run.bits, None)


def _open(config: Config, restart: bool) -> _Run:
    """Makes a run and puts it where its newest checkpoint left it."""
    text = load_text(config.text)
    vocabulary = Vocabulary(text)
    ids = vocabulary.encode(text)
    split = len(ids) - round(config.held_out * len(ids))
    model = make_model(config, len(vocabulary))
    # Few characters are held out of a short text: fewer streams read them.
    streams = min(config.batch, max(1, (len(ids) - split) // (config.window + 1)))
    run = _Run(
        config=config,
        text=text,
        vocabulary=vocabulary,
        streams=Streams(ids[:split], config.batch, config.window),
        held_out=Streams(ids[split:], streams, config.window),
        model=model,
        train_step=make_train_step(config, model),
        checkpoints=Checkpoints(Path(config.out) / "checkpoint"),
        state=init_state(config, model),
    )
    if restart:
        run.checkpoints.clear()
    step = run.checkpoints.latest()
    if step is not None:
        notes = run.checkpoints.notes()
        _check_same_run(run, notes)
        run.state = run.checkpoints.state(like=run.state)
        run.step, run.position = step, notes["position"]
        run.history = [Row(*row) for row in notes["history"]]
    return run


def _check_same_run(run: _Run, notes: dict[str, Any]) -> None:
    """Refuses to go on with a run of other options or another text."""
    way_out = "use the same, or start again with --restart, or elsewhere with --out"
    for name, value in dataclasses.asdict(run.config).items():
        stored = notes["config"].get(name)
        if name not in _FREE and value != stored:
            raise ValueError(
                f"{name}: got {value!r}, but the run in {run.out} was started with "
                f"{stored!r}; {way_out}"
            )
    if notes["text"] != run.notes["text"]:
        raise ValueError(
            f"text: the run in {run.out} was started on another text (Python's "
            f"documentation differs from version to version); {way_out}"
        )


def _train(run: _Run, interruption: Interruption, console: Console) -> None:
    """Takes steps until the last one, or until interrupted."""
    config = run.config
    evaluate = make_evaluate(run.model, run.held_out)
    # The median of these is the speed: it does not see that the first one compiles.
    recent: collections.deque[float] = collections.deque(maxlen=20)
    spent = run.history[-1].seconds if run.history else 0.0
    with _progress(console) as progress:
        task = progress.add_task(
            "", total=config.steps, completed=run.step, status="compiling"
        )
        while run.step < config.steps and interruption.signal is None:
            start = time.perf_counter()
            bits = _take_step(run)
            recent.append(time.perf_counter() - start)
            due = run.step % config.evaluate_every == 0 or run.step == config.steps
            held_out = evaluate(run.state.params) if due else None
            spent += time.perf_counter() - start
            run.history.append(Row(run.step, bits, held_out, spent))
            status = (
                f"loss {bits:.3f}, held-out {run.bits or math.nan:.3f} bits/char, "
                f"{config.batch * config.window / statistics.median(recent):,.0f} "
                "chars/s"
            )
            progress.update(task, completed=run.step, status=status)
            if due:
                run.save()
                progress.console.print(f"step {run.step:>5}: {status}")


def _take_step(run: _Run) -> float:
    """Takes one step and returns its loss in bits per character."""
    window = run.streams.at(run.position)
    run.state, loss = run.train_step(run.state, *window)
    run.step += 1
    run.position = run.streams.after(run.position)
    bits = float(loss)
    if not math.isfinite(bits):
        raise FloatingPointError(
            f"step {run.step}: the loss is {bits}; the last checkpoint is of step "
            f"{run.checkpoints.latest()}. Start again with --restart and a lower "
            "--learning-rate or --clip"
        )
    return bits


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        console=console,
        # Logs get the lines of the evaluations and no bar.
        disable=not console.is_terminal,
    )


def _finish(run: _Run, console: Console) -> None:
    """Writes a sample, prints the plan of the step, and times it against lax.scan."""
    config = run.config
    console.rule("a sample")
    nnx.update(run.model, run.state.params)
    pieces = []
    for piece in generate(
        run.model,
        run.vocabulary,
        config.sample,
        temperature=config.temperature,
        key=run.state.key,
    ):
        console.out(piece, end="", highlight=False)
        pieces.append(piece)
    console.print()
    console.rule("the plan of the training step")
    plans = _report.layer_plans(run.model, config.batch, config.window)
    console.out(plans, highlight=False)
    (run.out / "plan.txt").write_text(plans + "\n", encoding="utf-8")
    plain = make_model(config, len(run.vocabulary), implementation="scan")
    timings = _report.time_steps(
        {
            "scanrnn.scan": run.train_step,
            "lax.scan": make_train_step(config, plain),
        },
        run.state,
        run.streams.at(run.position),
    )
    console.print(_report.timing_table(timings, config.batch * config.window))
    (run.out / "sample.txt").write_text("".join(pieces), encoding="utf-8")
    console.print(
        f"{run.bits:.3f} bits per character on held-out text after {run.step} steps in "
        f"{run.history[-1].seconds:.0f} s. Everything is in {run.out}: checkpoint, "
        "metrics.csv, loss.png, sample.txt, plan.txt"
    )
