"""The training loop: training steps, their rows, evaluations and checkpoints."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from scanrnn.training._batches import Batches
from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._fit_checks import (
    check_kept,
    check_numbers,
    check_parts,
    check_taken,
)
from scanrnn.training._records import Writer
from scanrnn.training._step import FAULTS, Metrics, TrainState, TrainStep

# Metrics are read when this many later steps are running: no device waits for the loop.
_LAG = 2


class Fitted(NamedTuple):
    """How a call of `fit` ended.

    Attributes:
        state: The state after the last step.
        step: Steps taken in all, including skipped steps.
        stopped: Whether `stop` ended it before the last step.
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
        checkpoints: The checkpoints of the run.
        state: The state of a new run. Its arrays decide where the restored ones are
            put.
        batches: The data. It is moved to its saved position.
        step: The step of the checkpoint. Checkpoints of later steps are deleted, after
            everything is read. None reads the newest and deletes nothing.

    Returns:
        The state, and the notes that `fit` was given. If there is no checkpoint and
        `step` is None, the state that was given and an empty dict.

    Raises:
        ValueError: If there is no checkpoint of that step, it cannot be read, its notes
            have no position of the data, or later checkpoints cannot be deleted because
            another run has locked the folder.

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
    notes, state = checkpoints.load(lambda notes: state, step)
    if "batches" not in notes:
        raise ValueError(
            f"checkpoints: the notes of the checkpoint in {checkpoints.folder} have no "
            f"'batches', the position of the data, but {sorted(notes)}; `fit` saves it"
        )
    batches.restore(notes.pop("batches"))
    if step is not None:
        checkpoints.clear(after=step)
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
    """Trains: takes training steps, writes a row for each, evaluates and saves.

    The metrics of a step are read while later steps run, so the device does not wait
    for the loop, except for evaluations and checkpoints. The row of a step has "step",
    the fields of `Metrics` (with the name of the fault), and "seconds" since this call
    began. The row of an evaluation has "step" and its numbers; a name that the row of a
    step has, too, such as "loss", gets a prefix: `evaluate_loss`. Rows are flushed
    before the checkpoint of their step is saved.

    A checkpoint is saved every `evaluate_every` steps, after the last step, and at a
    stop. While steps are skipped one after another, none is saved before the end of the
    call. That one replaces others that were saved since the first skipped step, so the
    checkpoint from before the skipped steps stays.

    Args:
        train_step: The training step, as `make_train_step` returns it.
        state: The state to start from. Its memory is reused.
        batches: The data, at the position to start from.
        steps: Total number of steps, including those that the state has already taken.
        writers: Where rows go: a `Log`, a `TensorBoard`, or anything with methods
            `write(row)` and `flush()`.
        evaluate: A function of the state that returns numbers by name. It is called
            every `evaluate_every` steps and after the last step, but not after a stop.
        evaluate_every: Steps between two evaluations. A checkpoint is saved as often,
            also without `evaluate`.
        checkpoints: Where to save; None for no checkpoints. They are locked for this
            process.
        notes: What to save with the state and the position of the data: a dict that
            JSON can hold. Its name "batches" is for the position of the data.
        patience: How many steps in a row may be skipped. Skipped steps at the end of an
            earlier call count, too.
        stop: A function that is called before every step with the number of steps
            taken. True ends the run, with a checkpoint.

    Returns:
        The last state, its step, and whether the run was stopped.

    Raises:
        TypeError: If `state`, `writers` or `checkpoints` has another type, `batches` is
            no iterator, or there are checkpoints and it has no position; if `notes` or
            the position is no dict that JSON can hold; if `train_step` returns no
            `Metrics`, or `evaluate` no dict of numbers.
        ValueError: If `steps` or `evaluate_every` is no number or too small, `patience`
            is no integer of at least 0, `notes` has the name "batches", another run has
            locked the checkpoints, one cannot be written, one is of a later step than
            the state, or the batches end before the last step.
        FloatingPointError: If more than `patience` steps in a row were skipped, or an
            evaluation returns a number that is not finite.

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
    check_numbers(steps=(steps, 0), evaluate_every=(evaluate_every, 1))
    check_parts(state, batches, writers, checkpoints, patience)
    check_kept(notes, batches, checkpoints)
    begin, stopped, in_row = time.perf_counter(), False, int(state.counts.in_row)
    pending: deque[tuple[int, Metrics]] = deque()
    if (step := int(state.counts.steps)) >= steps:
        return Fitted(state, step, stopped)
    _lock(checkpoints, step)

    def read(most: int) -> None:
        """Writes the rows of all but the newest `most` steps."""
        nonlocal in_row
        while len(pending) > most:
            number, metrics = pending.popleft()
            row = _row(number, metrics, time.perf_counter() - begin)
            for writer in writers:
                writer.write(row)
            if (in_row := row["in_row"]) > patience:
                raise FloatingPointError(_complaint(row, checkpoints))

    def rest(last: bool) -> None:
        """Waits for the device, evaluates, and saves."""
        read(0)
        if evaluate is not None:
            row = {"step": step} | _apart(_numbers(evaluate(state)))
            for writer in writers:
                writer.write(row)
            if not np.isfinite(list(row.values())).all():
                raise FloatingPointError(_complaint(row, checkpoints))
        for writer in writers:
            writer.flush()
        # Loss scaling skips a single step now and then.
        if checkpoints is not None and (last or in_row <= 1):
            place = {"batches": batches.state()}
            _save(checkpoints, step, state, (notes or {}) | place, in_row)

    while step < steps and not (stopped := stop(step)):
        state, metrics = check_taken(train_step(state, _next(batches, step, steps)))
        step += 1
        pending.append((step, metrics))
        read(_LAG)
        if step % evaluate_every == 0 and step < steps:
            rest(last=False)
    if stopped:
        evaluate = None  # who stops a run does not want to wait
    rest(last=True)
    if checkpoints is not None:
        checkpoints.wait()
    return Fitted(state, step, stopped)


def _save(checkpoints, step, state, notes, in_row):
    """Saves a checkpoint; after skipped steps, in place of those saved since then.

    A skipped step changes nothing that is trained. But what goes wrong may have begun
    before it, and few checkpoints are kept: the one from before must stay.
    """
    if in_row > 1:
        saved, good = checkpoints.steps(), step - in_row
        if step not in saved and any(one <= good for one in saved):
            checkpoints.clear(after=good)
    checkpoints.save(step, state, notes)


def _numbers(found) -> dict[str, float]:
    """The numbers of an evaluation, which may be arrays, as numbers of Python."""
    if not isinstance(found, Mapping):
        raise TypeError(
            f"evaluate: returned {type(found).__name__}, want a dict of numbers by name"
        )
    arrays = {name: np.asarray(value) for name, value in found.items()}
    for name, array in arrays.items():
        if array.size != 1 or array.dtype.kind in "OUS":
            raise TypeError(f"evaluate: got {name}={found[name]!r}, want a number")
    return {name: array.item() for name, array in arrays.items()}


def _apart(numbers):
    """The numbers of an evaluation, under names that no number of a step has."""
    taken = {"step", "seconds", *Metrics._fields}
    return {f"evaluate_{n}" if n in taken else n: v for n, v in numbers.items()}


def _lock(checkpoints, step):
    """Locks the folder. Refuses one whose newest checkpoint would hide later ones."""
    if checkpoints is None:
        return
    checkpoints.lock()
    latest = checkpoints.latest()
    if latest is not None and latest > step:
        raise ValueError(
            f"checkpoints: {checkpoints.folder} has a checkpoint of step {latest}, but "
            f"the state has taken {step} steps; continue from it by "
            f"resume(checkpoints, ...), or delete it by checkpoints.clear(after={step})"
        )


def _next(batches, step, steps):
    try:
        return next(batches)
    except StopIteration:
        raise ValueError(
            f"batches: ended at step {step}, want batches for steps={steps}; repeat "
            "the data, as scanrnn.training.Arrays(...) does, or ask for fewer steps"
        ) from None


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
        fault = {"forward": "outputs or carry"}.get(row["fault"], row["fault"])
        what = (
            f"{row['in_row']} steps in a row were skipped; what was not finite in the "
            f"last one: {fault} ("
        )
    else:
        numbers = {n: v for n, v in row.items() if n != "step"}
        what = "an evaluation is not finite ("
    said = ", ".join(f"{name} {value:.6g}" for name, value in numbers.items())
    return (
        f"step {row['step']}: {what}{said}); {kept}. Start again with a lower learning "
        "rate or a smaller clip, or look at the data of this step"
    )
