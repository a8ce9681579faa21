"""A run in memory: opened from its folder, and saved there."""

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scanrnn.training import _report
from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._config import Config
from scanrnn.training._data import Streams, Vocabulary, load_text
from scanrnn.training._files import replaced, writing
from scanrnn.training._model import CharLM, make_model
from scanrnn.training._report import Row
from scanrnn.training._step import TrainState, TrainStep, init_state, make_train_step

# What may change between two sessions of one run: nothing that decides its numbers.
_FREE = {"out", "evaluate_every", "sample", "temperature"}


@dataclasses.dataclass
class Run:
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
        for leaf in jax.tree.leaves(self.state):
            if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(leaf).all():
                raise self.diverged("a parameter or a carry is not finite")
        with writing(self.out):
            self.checkpoints.save(self.step, self.state, self.notes)
            _report.write_metrics(self.out / "metrics.csv", self.history)

    def write(self, name: str, text: str) -> None:
        with writing(self.out), replaced(self.out / name) as partial:
            partial.write_text(text, encoding="utf-8")

    def diverged(self, what: str) -> FloatingPointError:
        step = self.checkpoints.latest()
        kept = "there is no checkpoint yet"
        if step is not None:
            kept = f"the last checkpoint is of step {step}"
        return FloatingPointError(
            f"step {self.step}: {what}; {kept}. Start again with --restart and a lower "
            "--learning-rate or --clip"
        )


def open_run(config: Config, restart: bool) -> Run:
    """Makes a run and puts it where its newest checkpoint left it.

    Args:
        config: Options of the run.
        restart: Delete the checkpoints in the folder first.

    Returns:
        The run.

    Raises:
        ValueError: If the folder holds a run with other options or another text, or
            cannot be written.
    """
    text = load_text(config.text)
    vocabulary = Vocabulary(text)
    ids = vocabulary.encode(text)
    split = len(ids) - round(config.held_out * len(ids))
    streams = Streams(ids[:split], config.batch, config.window)
    # Few characters are held out of a short text: fewer streams read them.
    readers = min(config.batch, max(1, (len(ids) - split) // (config.window + 1)))
    held_out = Streams(ids[split:], readers, config.window)
    with writing(Path(config.out)):
        checkpoints = Checkpoints(Path(config.out) / "checkpoint")
    model = make_model(config, len(vocabulary))
    run = Run(
        config=config,
        text=text,
        vocabulary=vocabulary,
        streams=streams,
        held_out=held_out,
        model=model,
        train_step=make_train_step(config, model),
        checkpoints=checkpoints,
        state=init_state(config, model),
    )
    if restart:
        with writing(run.out):
            run.checkpoints.clear()
    step = run.checkpoints.latest()
    if step is not None:
        notes = run.checkpoints.notes()
        _check_same_run(run, notes)
        run.state = run.checkpoints.state(like=run.state)
        run.step, run.position = step, notes["position"]
        run.history = [Row(*row) for row in notes["history"]]
    return run


def _check_same_run(run: Run, notes: dict[str, Any]) -> None:
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
