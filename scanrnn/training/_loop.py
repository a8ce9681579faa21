"""The training run: from a config to everything it leaves in its folder."""

import collections
import math
import statistics
import time
from typing import NamedTuple

import jax
from flax import nnx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from scanrnn.training import _report
from scanrnn.training._config import Config
from scanrnn.training._files import writing
from scanrnn.training._interruption import Interruption
from scanrnn.training._model import generate, make_model
from scanrnn.training._report import Row
from scanrnn.training._run import Run, open_run
from scanrnn.training._step import make_evaluate, make_train_step


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


def train(
    config: Config, *, restart: bool = False, console: Console | None = None
) -> Outcome:
    """Trains a character language model, or goes on with a run that was stopped.

    The folder `config.out` gets a checkpoint, `metrics.csv`, `loss.png`, `sample.txt`
    and `plan.txt`. SIGINT and SIGTERM end the run with a checkpoint; the next call goes
    on from it and gives, on a CPU, the very numbers of a run that was not stopped.

    Args:
        config: Options of the run.
        restart: Delete what an older run left in the folder and start again.
        console: Where to print; None for the standard output.

    Returns:
        How it ended.

    Raises:
        ValueError: If the folder holds a run with other options or another text, or its
            checkpoint cannot be read, or the folder cannot be written.
        FloatingPointError: If the loss or a parameter is no longer finite.

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
    run = open_run(config, restart)
    if run.step >= config.steps and (run.out / "sample.txt").is_file():
        console.print(
            f"{run.out} is finished: {run.step} steps, {run.bits:.3f} bits per "
            "character on held-out text. Start again with --restart, or elsewhere "
            "with --out FOLDER."
        )
        return Outcome(run.step, run.bits, None)
    # Left by an older run here; the sample would make this one count as finished.
    with writing(run.out):
        for name in ("sample.txt", "plan.txt"):
            (run.out / name).unlink(missing_ok=True)
    console.print(
        f"{'Going on after step ' + str(run.step) if run.step else 'Training'}: "
        f"{len(run.streams.ids):,} characters to train on, "
        f"{len(run.held_out.ids):,} held out, {len(run.vocabulary)} symbols, "
        f"{sum(leaf.size for leaf in jax.tree.leaves(run.state.params)):,} parameters"
    )
    with Interruption() as interruption:
        _train(run, interruption, console)
        run.save()
    with writing(run.out):
        _report.draw_losses(run.out / "loss.png", run.history)
    if interruption.signal is not None:
        console.print(
            f"Stopped after step {run.step} of {config.steps}; the checkpoint is in "
            f"{run.checkpoints.folder}. Run the same command again to go on."
        )
        return Outcome(run.step, run.bits, interruption.signal)
    _finish(run, console)
    return Outcome(run.step, run.bits, None)


def _train(run: Run, interruption: Interruption, console: Console) -> None:
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
            if held_out is not None and not math.isfinite(held_out):
                raise run.diverged(f"the held-out loss is {held_out}")
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


def _take_step(run: Run) -> float:
    """Takes one step and returns its loss in bits per character."""
    window = run.streams.at(run.position)
    run.state, loss = run.train_step(run.state, *window)
    run.step += 1
    run.position = run.streams.after(run.position)
    bits = float(loss)
    if not math.isfinite(bits):
        raise run.diverged(f"the loss is {bits}")
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


def _finish(run: Run, console: Console) -> None:
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
    run.write("plan.txt", plans + "\n")
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
    # Last, and at once: it is the mark of a run that is finished.
    run.write("sample.txt", "".join(pieces))
    console.print(
        f"{run.bits:.3f} bits per character on held-out text after {run.step} steps in "
        f"{run.history[-1].seconds:.0f} s. Everything is in {run.out}: checkpoint, "
        "metrics.csv, loss.png, sample.txt, plan.txt"
    )
