"""The loop: steps, records of them, evaluations and checkpoints, until told to stop."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from scanrnn.training._batches import Batches
from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._records import Writer
from scanrnn.training._step import FAULTS, Metrics, TrainState, TrainStep

# Metrics are read when so many later steps are on their way: nothing waits for them.
_LAG = 2


class Fitted(NamedTuple):
    """How a call of `fit` ended.

    Attributes:
        state: The state after the last step.
        step: Steps taken in all, skipped ones too.
        stopped: Whether it was told to stop before the last step.
    """

    state: TrainState
    step: int
    stopped: bool


def resume(
    checkpoints: Checkpoints,
    state: TrainState,
    batches: Batches,
    step: int | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """Restores state and data from the newest checkpoint, or from an older one.

    Args:
        checkpoints: Where to look.
        state: The state of a new run. Its arrays decide where the restored ones are
            put.
        batches: The data, which is moved to its saved position.
        step: Which checkpoint; those of later steps are then deleted. None for the
            newest.

    Returns:
        The state, and the notes of the checkpoint. Without a checkpoint, the state
        that was given, and no notes.

    Raises:
        ValueError: If the checkpoint cannot be read, or there is none of that step.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp, numpy as np, optax
        >>> from scanrnn.training import Arrays, Checkpoints, init_state, resume
        >>> key = jax.random.key(0)
        >>> state = init_state({"w": jnp.ones(1)}, optax.sgd(1.0), key=key)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _, notes = resume(Checkpoints(folder), state, Arrays(np.ones(4), 2))
        >>> notes
        {}
    """
    if step is None and checkpoints.latest() is None:
        return state, {}
    notes = dict(checkpoints.notes(step))
    state = checkpoints.state(like=state, step=step)
    if step is not None:
        checkpoints.clear(after=step)
    batches.restore(notes.pop("batches"))
    return state, notes


def fit(
    train_step: TrainStep,
    state: TrainState,
    batches: Batches,
    *,
    steps: int,
    writers: Sequence[Writer] = (),
    evaluate: Callable[[TrainState], dict[str, float]] | None = None,
    evaluate_every: int = 100,
    checkpoints: Checkpoints | None = None,
    notes: dict[str, Any] | None = None,
    patience: int = 20,
    stop: Callable[[int], bool] = lambda step: False,
) -> Fitted:
    """Trains: takes steps, writes a row for each, evaluates and saves.

    The loop waits for the device only to evaluate or to save: the numbers of a step are
    read while later steps run. A row has "step", the `Metrics` with the name of a
    fault, and "seconds" since the start. An evaluation adds a row with its numbers.
    Rows are on disk before the checkpoint of their step.

    Args:
        train_step: As `make_train_step` makes it.
        state: The state to start from; its memory is reused.
        batches: The data, at the position to start from.
        steps: Total number of steps, including those that the state has already taken.
        writers: Where rows go: a `Log`, a `TensorBoard`, or anything with methods
            `write(row)` and `flush()`.
        evaluate: A function of the state that gives numbers by name, called every
            `evaluate_every` steps and after the last.
        evaluate_every: Steps between two evaluations, each with a checkpoint.
        checkpoints: Where to save; None for nowhere. They are locked for this process.
            Nothing is saved while steps are being skipped.
        notes: What to save beside the state and the place of the data.
        patience: How many steps in a row may be skipped.
        stop: Called before every step with the steps taken; True ends the run, with a
            checkpoint.

    Returns: How it ended.

    Raises:
        ValueError: If another run has the checkpoints.
        FloatingPointError: If more steps in a row than `patience` were skipped, or an
            evaluation gives a number that is not finite.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, optax
        >>> from scanrnn.training import Arrays, fit, init_state, make_train_step
        >>> def loss_fn(params, carry, batch, key):
        ...     return jnp.mean((params["w"] - batch) ** 2), (carry, ())
        >>> optimizer = optax.sgd(0.1)
        >>> state = init_state({"w": jnp.ones(1)}, optimizer, key=jax.random.key(0))
        >>> batches = Arrays(np.full([6, 1], 3.0, np.float32), batch=2)
        >>> fitted = fit(make_train_step(loss_fn, optimizer), state, batches, steps=30)
        >>> fitted.step, round(float(fitted.state.params["w"][0]), 2)
        (30, 3.0)
    """
    begin, stopped = time.perf_counter(), False
    pending: deque[tuple[int, Metrics]] = deque()
    if (step := int(state.counts.steps)) >= steps:
        return Fitted(state, step, stopped)
    if checkpoints is not None:
        checkpoints.lock()

    def read(most: int) -> bool:
        """Writes the rows of all but the last `most` steps; whether those were good."""
        good = True
        while len(pending) > most:
            number, metrics = pending.popleft()
            row = _row(number, metrics, time.perf_counter() - begin)
            for writer in writers:
                writer.write(row)
            good = not row["skipped"]
            if row["in_row"] > patience:
                raise FloatingPointError(_complaint(row, checkpoints))
        return good

    def rest() -> None:
        """Waits for the device, evaluates, and saves."""
        good = read(0)
        if evaluate is not None:
            row = {"step": step} | evaluate(state)
            for writer in writers:
                writer.write(row)
            if good and not np.isfinite([v for v in row.values()]).all():
                raise FloatingPointError(_complaint(row, checkpoints))
        for writer in writers:
            writer.flush()
        if good and checkpoints is not None:
            place = {"batches": batches.state()}
            checkpoints.save(step, state, (notes or {}) | place)

    while step < steps and not (stopped := stop(step)):
        state, metrics = train_step(state, next(batches))
        step += 1
        pending.append((step, metrics))
        read(_LAG)
        if step % evaluate_every == 0 and step < steps:
            rest()
    if stopped:
        evaluate = None  # whoever stops it does not want to wait
    rest()
    if checkpoints is not None:
        checkpoints.wait()
    return Fitted(state, step, stopped)


def _row(step, metrics, seconds):
    values = {name: a.item() for name, a in jax.device_get(metrics)._asdict().items()}
    values["fault"] = FAULTS[values["fault"]]
    return {"step": step} | values | {"seconds": round(seconds, 4)}


def _complaint(row, checkpoints):
    kept = "there is no checkpoint yet"
    if checkpoints is not None and (saved := checkpoints.latest()) is not None:
        kept = f"the last checkpoint is of step {saved}"
    if "fault" in row:
        numbers = {n: row[n] for n in ("loss", "grad_norm", "loss_scale")}
        what = (
            f"{row['in_row']} steps in a row were skipped, the last one because its "
            f"{row['fault']} is not finite ("
        )
    else:
        numbers = {n: v for n, v in row.items() if n != "step"}
        what = "an evaluation is not finite ("
    said = ", ".join(f"{name} {value:.6g}" for name, value in numbers.items())
    return (
        f"step {row['step']}: {what}{said}); {kept}. Start again with a lower learning "
        "rate or clip, or look at its data"
    )
