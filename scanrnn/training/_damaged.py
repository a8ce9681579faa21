"""Errors of checkpoints that cannot be read, and the way out of each."""

from collections.abc import Sequence
from pathlib import Path


class Damaged(Exception):
    """A checkpoint is not what was saved."""


class Foreign(Damaged):
    """A checkpoint is of another program."""


def chosen(folder: Path, step: int | None, steps: Sequence[int]) -> int:
    """Chooses the checkpoint to read.

    Args:
        folder: The folder of the checkpoints.
        step: Which is asked for; None for the newest.
        steps: The steps of all checkpoints in the folder, the newest last.

    Returns:
        Its step.

    Raises:
        ValueError: If it is not there.
    """
    if not steps:
        raise ValueError(f"no checkpoint in {folder}; train one first")
    if step is not None and step not in steps:
        have = " and ".join(map(str, steps))
        raise ValueError(
            f"step: got {step}, but the checkpoints in {folder} are of {have}: choose "
            "one of these"
        )
    return steps[-1] if step is None else step


def unreadable(
    folder: Path, step: int, error: Exception, steps: Sequence[int]
) -> ValueError:
    """Makes the error for a checkpoint that cannot be read.

    Args:
        folder: The folder of the checkpoints.
        step: The step of the checkpoint.
        error: Why it cannot be read.
        steps: The steps of all checkpoints in the folder.

    Returns:
        The error. It says what the user can do.
    """
    before = max((s for s in steps if s < step), default=None)
    way = "start again in an empty folder (command: --restart)"
    if isinstance(error, Foreign):
        way = "choose another folder (command: --out)"
    elif before is not None:
        way = (
            f"go on from the one before it with resume(..., step={before}) (command: "
            f"--resume-from {before}), or {way}"
        )
    return ValueError(
        f"the checkpoint of step {step} cannot be read; {way} "
        f"({folder / str(step)}: {error})"
    )
