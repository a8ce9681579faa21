"""Checks of the arguments of `fit`, before its first step."""

import operator
from collections.abc import Collection
from typing import Any

from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._saved import check_json, check_notes
from scanrnn.training._step import Metrics, TrainState, check_state


def check_numbers(**least: tuple[Any, int]) -> None:
    """Raise ValueError unless they are numbers that are large enough.

    Args:
        **least: For each argument its value, and the least one that is accepted.
    """
    for name, (number, smallest) in least.items():
        try:
            fits = bool(number >= smallest)
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise ValueError(
                f"{name}: got {number!r}, want a number of at least {smallest}"
            )


def check_parts(
    state: Any, batches: Any, writers: Any, checkpoints: Any, patience: Any
) -> None:
    """Raise TypeError or ValueError unless `fit` can use these.

    Args:
        state: The state to start from.
        batches: The data.
        writers: Where rows go.
        checkpoints: Where to save; None is accepted.
        patience: How many steps in a row may be skipped.
    """
    if not _is_count(patience):
        raise ValueError(
            f"patience: got {patience!r}, want an integer of at least 0: how many "
            "steps in a row may be skipped"
        )
    if not hasattr(state, "counts"):
        check_state(state)
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        raise TypeError(
            f"checkpoints: got {checkpoints!r}, want "
            "scanrnn.training.Checkpoints(folder), or None to save nothing"
        )
    needs = ("__next__", *["state"] * (checkpoints is not None))
    if missing := _missing(batches, *needs):
        raise TypeError(
            f"batches: got a {type(batches).__name__} without {missing}; want an "
            "iterator of batches, which with checkpoints= also has the methods state() "
            "and restore(state), as scanrnn.training.Arrays(...) has"
        )
    if not isinstance(writers, Collection) or hasattr(writers, "write"):
        raise TypeError(
            f"writers: got a {type(writers).__name__}, want a list; put a single "
            "writer into a list"
        )
    for writer in writers:
        if missing := _missing(writer, "write", "flush"):
            raise TypeError(
                f"writers: got {writer!r} without {missing}; want a Log, a "
                "TensorBoard, or an object with write(row) and flush()"
            )


def _missing(value, *names):
    return " and ".join(name for name in names if not hasattr(value, name))


def _is_count(number):
    try:
        return operator.index(number) >= 0
    except TypeError:
        return False


def check_kept(notes: Any, batches: Any, checkpoints: Any) -> None:
    """Raise TypeError or ValueError unless a checkpoint can hold these.

    Args:
        notes: What the caller wants to save; None is accepted.
        batches: The data. If there are checkpoints, its position is saved.
        checkpoints: Where to save; None is accepted.
    """
    if notes is not None:
        check_notes(notes)
        if "batches" in notes:
            raise ValueError(
                "notes: got the name 'batches', which is for the position of the data; "
                "take another name"
            )
    if checkpoints is not None:
        check_json("batches: state() returned what", batches.state())


def check_taken(taken: Any) -> tuple[TrainState, Metrics]:
    """Raise TypeError unless a step has returned a state and its metrics; return them.

    Args:
        taken: What the training step returned.
    """
    if isinstance(taken, tuple | list) and len(taken) == 2:
        state, metrics = taken
        if hasattr(metrics, "_asdict"):
            return state, metrics
        taken = metrics
    raise TypeError(
        f"train_step: returned a {type(taken).__name__}, want a state and its Metrics; "
        "give the step that scanrnn.training.make_train_step(...) makes"
    )
