"""A run of a language model, as it is opened from its folder."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.training.dynamic_scale import DynamicScale
from jax.sharding import Mesh

from scanrnn.training._batches import Streams
from scanrnn.training._buckets import Buckets
from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._config import Config
from scanrnn.training._files import writing
from scanrnn.training._loop import resume
from scanrnn.training._mesh import (
    mesh_of_run,
    rows_of_process,
    shard_batch,
    shard_state,
)
from scanrnn.training._model import LanguageModel, make_model, zero_carry
from scanrnn.training._objective import make_evaluate, make_loss, make_optimizer
from scanrnn.training._precision import Precision
from scanrnn.training._prefetch import Prefetch
from scanrnn.training._same_run import check_folder, check_same_run, identity, settled
from scanrnn.training._step import TrainState, TrainStep, init_state, make_train_step
from scanrnn.training._text import Corpus, load_corpus, sentences_of


@dataclasses.dataclass
class Run:
    """A run: its fixed parts, and its current state.

    Attributes:
        config: The options.
        corpus: The text.
        model: The model with its initial parameters.
        mesh: The devices; None for one device.
        batches: The data, at its current position.
        train_step: The guarded training step.
        evaluate: Computes nats per token of the held-out text, from parameters.
        checkpoints: The checkpoints of the run.
        state: The current state.
        notes: The notes of the checkpoint that was restored; empty without one.
        epoch: Number of steps in an epoch.
    """

    config: Config
    corpus: Corpus
    model: LanguageModel
    mesh: Mesh | None
    batches: Prefetch
    train_step: TrainStep
    evaluate: Callable[[Any], float]
    checkpoints: Checkpoints
    state: TrainState
    notes: dict[str, Any]
    epoch: int

    @property
    def steps(self) -> int:
        """Steps that the options ask for; 0 for as many as fit into the time."""
        return self.config.steps or self.config.epochs * self.epoch

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return Path(self.config.out)

    @property
    def tokens(self) -> int:
        """Tokens per step; for sentences, their mean number."""
        if self.config.batching == "streams":
            return self.config.batch * self.config.window
        source: Any = self.batches.source
        return round(source.tokens / len(source))

    @property
    def unit(self) -> tuple[str, float]:
        """The unit in which the loss is shown, and one nat in this unit."""
        if self.corpus.vocabulary.are_characters:
            return "bits per character", 1 / math.log(2)
        return "nats per word", 1.0

    @property
    def identity(self) -> dict[str, Any]:
        """The notes by which a checkpoint is known to be of this run."""
        return identity(self.config, self.corpus)


def open_run(
    config: Config, restart: bool = False, resume_from: int | None = None
) -> Run:
    """Makes a run, and restores its newest checkpoint if there is one.

    The folder is locked until `run.checkpoints` is closed.

    Args:
        config: Options of the run.
        restart: Delete the checkpoints in the folder first.
        resume_from: Continue from the checkpoint of this step, and delete later ones.

    Returns:
        The run.

    Raises:
        ValueError: If the folder has another run, or files that the run would replace,
            is in use, or cannot be written; or for both `restart` and `resume_from`.
    """
    if restart and resume_from is not None:
        raise ValueError("resume_from: --restart deletes that checkpoint; drop either")
    checkpoints = Checkpoints(Path(config.out) / "checkpoint")
    with contextlib.ExitStack() as unless_opened:
        unless_opened.callback(checkpoints.close)
        run = _make_run(settled(config, checkpoints, restart, resume_from), checkpoints)
        _go_to_checkpoint(run, restart, resume_from)
        unless_opened.pop_all()
    return run


def _make_run(config, checkpoints):
    """Makes a run at its start."""
    mesh = mesh_of_run(config.devices, config.tensor)
    corpus = load_corpus(
        config.text, config.tokens, config.held_out, config.vocabulary or None
    )
    check_folder(config)
    model = make_model(config, len(corpus.vocabulary))
    batches, epoch = _batches(config, corpus, mesh)
    state, train_step = make_training(config, model, epoch, mesh)
    return Run(
        config=config,
        corpus=corpus,
        model=model,
        mesh=mesh,
        batches=batches,
        train_step=train_step,
        evaluate=_evaluation(config, corpus, model),
        checkpoints=checkpoints,
        state=state,
        notes={},
        epoch=epoch,
    )


def _go_to_checkpoint(run: Run, restart: bool, step: int | None) -> None:
    """Locks the folder, and restores a checkpoint if there is one."""
    checkpoints = run.checkpoints
    with writing(run.out):
        run.out.mkdir(parents=True, exist_ok=True)
    checkpoints.lock()
    if restart:
        checkpoints.clear()
    steps = checkpoints.steps()
    if step is None and not steps:
        return
    if step is not None and step not in steps:
        have = " and ".join(map(str, steps))
        other = f" of {step}, but of {have}; choose one of these, or" if have else ";"
        raise ValueError(
            f"resume_from: there is no checkpoint in {checkpoints.folder}{other} leave "
            "out --resume-from"
        )
    check_same_run(run.identity, checkpoints.notes(step))
    run.state, run.notes = resume(checkpoints, run.state, run.batches, step)


def make_training(
    config: Config,
    model: LanguageModel,
    epoch: int | None = None,
    mesh: Mesh | None = None,
) -> tuple[TrainState, TrainStep]:
    """Makes the first state and the guarded training step of a config.

    Without `config.steps`, give the number of steps to `set_steps` before you train:
    else the learning rate of "adamw" does not fall (see `make_optimizer`).

    Args:
        config: Options of the run.
        model: The model with its initial parameters.
        epoch: Number of steps in an epoch; None if it is not known.
        mesh: The devices; None for one device.

    Returns:
        The state and the training step.

    Example:
        >>> from scanrnn.training import Config, make_model, make_training
        >>> config = Config(features=8, batch=3)
        >>> state, train_step = make_training(config, make_model(config, symbols=30))
        >>> state.carry[0].h.shape
        (3, 8)
    """
    optimizer = make_optimizer(config, epoch)
    precision = Precision.parse(config.precision)
    auto = config.loss_scale == "auto" and precision.needs_scaling
    state = init_state(
        nnx.state(model),
        optimizer,
        carry=_first_carry(config, model),
        key=jax.random.key(config.seed),
        loss_scale=DynamicScale() if auto or config.loss_scale == "dynamic" else None,
    )
    shardings = None
    if mesh is not None:
        state = shard_state(state, mesh, config.accumulate)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return state, make_train_step(
        make_loss(model, config.loss),
        optimizer,
        clip=config.clip,
        accumulate=config.accumulate,
        shardings=shardings,
    )


def _first_carry(config, model):
    if config.batching == "sentences":
        return ()
    parts = config.accumulate
    if parts == 1:
        return zero_carry(model, config.batch)
    carry = zero_carry(model, config.batch // parts)
    return jax.tree.map(lambda a: jnp.stack([a] * parts), carry)


def _batches(config, corpus, mesh):
    """Returns the data of a run, and the number of steps in an epoch."""
    rows = (0, config.batch)
    if mesh is not None:
        rows = rows_of_process(mesh, config.batch, config.accumulate)
    if config.batching == "sentences":
        if jax.process_count() > 1:
            raise ValueError(
                "batching: sentences are for one process; take --batching streams"
            )
        sentences = sentences_of(corpus.train, corpus, "part to train on")
        batches = Buckets(sentences, config.batch, seed=config.seed)
        epoch = len(batches)
    else:
        batches = Streams(
            corpus.train,
            config.batch,
            config.window,
            rows=rows,
            parts=config.accumulate,
        )
        epoch = (len(corpus.train) // config.batch - 1) // config.window
    place = (
        jax.device_put if mesh is None else functools.partial(shard_batch, mesh=mesh)
    )
    return Prefetch(batches, place=place), max(epoch, 1)


def _evaluation(config, corpus, model):
    """Makes the evaluation. It reads the held-out text once, from its start."""
    ids = corpus.held_out
    if config.batching == "sentences":
        sentences = sentences_of(ids, corpus, "held-out part")

        def read_sentences():
            batches = Buckets(sentences, config.batch)
            return (next(batches) for _ in range(len(batches)))

        return make_evaluate(model, read_sentences, ())
    # The end of each stream, shorter than a window, is not read. So few streams read a
    # short text: then about a twentieth of it is left out at most, if it has twenty
    # windows.
    readers = min(config.batch, max(1, len(ids) // (20 * config.window)))
    least = config.window + 1
    if len(ids) < least:
        raise ValueError(
            f"held_out: the held-out part of the text has {len(ids)} tokens, want at "
            f"least window + 1 = {least}; give more text, a larger held_out, or a "
            "smaller window"
        )
    windows = (len(ids) // readers - 1) // config.window

    def read_streams():
        streams = Streams(ids, readers, config.window)
        return (next(streams) for _ in range(windows))

    # An array on the host can go to any devices that hold the parameters.
    carry = jax.tree.map(np.asarray, zero_carry(model, readers))
    return make_evaluate(model, read_streams, carry)
