"""A training run: from its config to the files in its folder."""

import contextlib
import math
import time
from typing import NamedTuple

import jax
from flax import nnx
from rich.console import Console

from scanrnn._files import replacing
from scanrnn.machines import machine_of
from scanrnn.training import _report
from scanrnn.training._batches import Streams
from scanrnn.training._config import Config
from scanrnn.training._files import writing
from scanrnn.training._health_picture import draw_health, health_row, probe_model
from scanrnn.training._interruption import Interruption
from scanrnn.training._loop import fit
from scanrnn.training._model import make_model
from scanrnn.training._pace import Plan
from scanrnn.training._precision import explain
from scanrnn.training._processes import largest, whole
from scanrnn.training._records import Log, TensorBoard, Writer, draw_curves
from scanrnn.training._run import Run, make_training, open_run
from scanrnn.training._sample import generate
from scanrnn.training._show import Bar, Units, print_text

# Every this many steps, several processes agree whether to stop.
_AGREE = 10


class Outcome(NamedTuple):
    """How a call of `train` ended.

    Attributes:
        step: Steps taken in all.
        held_out: Loss on the held-out text at the last evaluation, in bits per
            character or nats per word. NaN before the first evaluation. None in a
            process that writes no log.
        signal: The number of the signal that stopped the run; None if it is finished.
    """

    step: int
    held_out: float | None
    signal: int | None


def train(
    config: Config,
    *,
    restart: bool = False,
    resume_from: int | None = None,
    console: Console | None = None,
) -> Outcome:
    """Trains a language model, or continues a run that was stopped.

    The folder `config.out` gets a checkpoint, `log.jsonl`, `loss.png`, `sample.txt`
    and `plan.txt`. `loss.png` needs matplotlib. The last two are written by a run of
    one process only. SIGINT and SIGTERM end the run with a checkpoint; the next call
    continues from it. With `steps` or `epochs`, the numbers on a CPU are then exactly
    those of a run that was not stopped. During the run the folder is locked: no other
    run can write into it.

    Args:
        config: Options of the run.
        restart: Delete checkpoints and log of an older run in the folder; start again.
        resume_from: Continue from the checkpoint of this step and delete later ones.
            Use it if the newest checkpoint cannot be read.
        console: Where to print; None for the standard output.

    Returns:
        The step, the loss on the held-out text, and the signal that stopped the run.

    Raises:
        ValueError: If the folder has a run with other options or another text, or
            files that the run would replace though they are of no run; if its
            checkpoint cannot be read, another run has locked it, or it cannot be
            written; or if both `restart` and `resume_from` are given.
        FloatingPointError: If more than `config.patience` steps in a row were skipped,
            or the loss on the held-out text is not finite.

    Example:
        >>> import tempfile
        >>> from scanrnn.training import Config, train
        >>> with tempfile.TemporaryDirectory() as out:
        ...     config = Config(out=out, features=8, batch=2, window=8, steps=-1)
        Traceback (most recent call last):
            ...
        ValueError: steps: got -1, want at least 0
    """
    begin = time.perf_counter()
    first = jax.process_index() == 0
    console = console or Console(
        markup=False, highlight=False, soft_wrap=True, quiet=not first
    )
    run = open_run(config, restart, resume_from)
    with run.checkpoints:
        if line := explain(config.precision, machine_of(), run.config.precision):
            console.print(line)
        return _train(run, begin, console)


def _train(run: Run, begin: float, console: Console) -> Outcome:
    """Trains from the current step of a run, and writes the files of its folder."""
    first = jax.process_index() == 0
    done = int(run.state.counts.steps)
    log = Log(run.out / "log.jsonl", last=done) if first else None
    rows = log.rows() if log else []
    if run.notes.get("steps") == done and (run.out / "sample.txt").is_file():
        console.print(
            f"{run.out} is finished: {done} steps, {_held_out(rows):.3f} "
            f"{run.unit[0]} on held-out text. Start again with --restart, or elsewhere "
            "with --out FOLDER."
        )
        return Outcome(done, _held_out(rows), None)
    # An older run may have left these. A sample marks a run as finished.
    with writing(run.out):
        for name in ("sample.txt", "plan.txt"):
            (run.out / name).unlink(missing_ok=True)
    _introduce(run, done, console)
    plan = Plan(run, done, begin - _seconds(rows))
    plan.announce(console)
    with Interruption() as interruption:
        fitted = _fit(run, plan, done, rows, log, interruption, console)
    run.state = fitted.state
    signal = interruption.signal if fitted.stopped else None
    if log is None:
        return Outcome(fitted.step, None, signal)
    rows = log.rows()
    with writing(run.out):
        drawn = draw_curves(run.out / "loss.png", rows, run.unit[0])
    if fitted.stopped:
        console.print(
            f"Stopped after step {fitted.step} of {plan.steps}; {_kept(run)}. Run the "
            "same command again to go on."
        )
        return Outcome(fitted.step, _held_out(rows), signal)
    left = f"{_kept(run)}, log.jsonl" + ", loss.png" * drawn
    if jax.process_count() == 1:
        _finish(run, console)
        left += ", sample.txt, plan.txt"
    else:
        left += (
            ". Several processes write no sample.txt and no plan.txt; one does: "
            f"python -m scanrnn sample --out {run.out}"
        )
    console.print(
        f"{_held_out(rows):.3f} {run.unit[0]} on held-out text after {fitted.step} "
        f"steps in {_seconds(rows):.0f} s. Everything is in {run.out}: {left}"
    )
    return Outcome(fitted.step, _held_out(rows), None)


def _kept(run):
    """Says of which step the newest checkpoint is."""
    step = run.checkpoints.latest()
    return "no checkpoint" if step is None else f"checkpoint of step {step}"


def _held_out(rows):
    held_out = [row["held_out"] for row in rows if "held_out" in row]
    # The log has None for a number that is not finite.
    return math.nan if not held_out or held_out[-1] is None else held_out[-1]


def _seconds(rows):
    return next((row["seconds"] for row in reversed(rows) if "seconds" in row), 0.0)


def _introduce(run: Run, done: int, console: Console) -> None:
    tokens = "characters" if run.corpus.vocabulary.are_characters else "words"
    console.print(
        f"{f'Going on after step {done}' if done else 'Training'}: "
        f"{len(run.corpus.train):,} {tokens} to train on, "
        f"{len(run.corpus.held_out):,} held out, {len(run.corpus.vocabulary):,} "
        f"different ones, {sum(a.size for a in jax.tree.leaves(run.state.params)):,} "
        "parameters"
    )
    waste = getattr(run.batches.source, "waste", None)
    if waste is not None:
        console.print(f"sentences in buckets: {waste:.1%} of all steps are padding")
    if run.mesh is not None:
        console.print(
            f"{run.mesh.size} devices {dict(run.mesh.shape)} of {jax.process_count()} "
            "processes"
        )


def _fit(run, plan, done, rows, log, interruption, console):
    """Trains until the last step, or until a signal."""
    config, (unit, factor) = run.config, run.unit
    if config.loss == "sum":
        factor = factor / config.window

    def evaluate(state):
        nats = run.evaluate(state.params)
        row = {"held_out": nats * run.unit[1]}
        if not run.corpus.vocabulary.are_characters:
            row["perplexity"] = math.exp(min(nats, 700.0))
        return row | (_look(run, state) if config.health else {})

    def stop(step):
        if jax.process_count() > 1 and step % _AGREE:
            return False
        return _told_to_stop(interruption)

    with (
        Bar(console, plan.steps, done, run.tokens, unit) as bar,
        contextlib.ExitStack() as opened,
    ):
        writers: list[Writer] = [bar] if log is None else [log, bar]
        if log is not None and config.tensorboard:
            board = TensorBoard(run.out / "tensorboard", last=done)
            writers.append(opened.enter_context(contextlib.closing(board)))
        writers = [Units(writers, factor, _seconds(rows))]
        while True:
            fitted = fit(
                run.train_step,
                run.state,
                run.batches,
                steps=plan.next(done),
                writers=writers,
                evaluate=evaluate,
                evaluate_every=config.evaluate_every,
                checkpoints=run.checkpoints,
                notes=run.identity | {"steps": plan.steps},
                patience=config.patience,
                stop=stop,
            )
            run.state, done = fitted.state, fitted.step
            if fitted.stopped or done >= plan.steps:
                return fitted
            plan.update(done)
            bar.go_on_until(plan.steps)


def _told_to_stop(interruption):
    """Whether any process got a signal. Then all stop, with the same exit status."""
    agreed = largest(interruption.signal or 0)
    # A signal that comes during this exchange is kept for the next check.
    if agreed:
        interruption.signal = agreed
    return agreed > 0


def _look(run, state):
    """Probes the model on the start of the held-out text, and draws the result."""
    streams = Streams(run.corpus.held_out, 1, min(64, len(run.corpus.held_out) - 1))
    graphdef, params = nnx.graphdef(run.model), whole(state.params)
    layers = probe_model(nnx.merge(graphdef, params), next(streams))
    if jax.process_index() == 0:
        with writing(run.out):
            draw_health(run.out / "health.png", layers)
    return health_row(layers)


def _finish(run: Run, console: Console) -> None:
    """Writes a sample, prints the plan of the step, and times it against lax.scan."""
    config = run.config
    console.rule("a sample")
    nnx.update(run.model, run.state.params)
    pieces = []
    for piece in generate(
        run.model,
        run.corpus.vocabulary,
        config.sample,
        temperature=config.temperature,
        key=run.state.key,
    ):
        print_text(console, piece)
        pieces.append(piece)
    console.print()
    console.rule("the plan of the training step")
    plans = _report.plans_of_layers(run.model, config.batch, config.window)
    console.out(_report.describe(plans, long=False), highlight=False)
    _write(run, "plan.txt", _report.describe(plans, long=True) + "\n")
    plain = make_model(config, len(run.corpus.vocabulary), implementation="scan")
    _, plain_step = make_training(config, plain, mesh=run.mesh)
    timings = _report.time_steps(
        {"scanrnn.scan": run.train_step, "lax.scan": plain_step},
        run.state,
        next(run.batches),
    )
    console.print(_report.timing_table(timings, run.tokens))
    # Last, and in one go: this file marks a run as finished.
    _write(run, "sample.txt", "".join(pieces))


def _write(run: Run, name: str, text: str) -> None:
    with writing(run.out), replacing(run.out / name) as partial:
        partial.write_text(text, encoding="utf-8")
