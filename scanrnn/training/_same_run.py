"""Whether a folder, its run and its text belong together."""

import dataclasses
import zlib
from pathlib import Path
from typing import Any

from scanrnn.machines import machine_of
from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._config import Config
from scanrnn.training._precision import settle
from scanrnn.training._processes import of_first
from scanrnn.training._text import Corpus

# Files that a run deletes or replaces.
_WRITTEN = ("log.jsonl", "loss.png", "health.png", "sample.txt", "plan.txt")
# Options that may change between two sessions of one run. They change what a training
# step computes only by rounding; `minutes` also changes learning rates to come. The
# text is compared by what is in it.
_FREE = {
    *("out", "text", "evaluate_every", "sample", "temperature", "minutes", "patience"),
    *("health", "tensorboard", "devices", "tensor"),
}


def check_folder(config: Config) -> None:
    """Refuses a folder in which a run would write over files of the user.

    Args:
        config: Options of the run.

    Raises:
        ValueError: If the text is a file that a run writes, or the folder has such
            files although it has no run.
    """
    out = Path(config.out)
    found = [out / name for name in _WRITTEN if (out / name).is_file()]
    text = Path(config.text)
    if config.text and any(text.samefile(path) for path in found):
        raise ValueError(
            f"text: {config.text!r} is a file that a run in {config.out!r} writes "
            "over; rename the text, or choose another folder with --out"
        )
    if found and not (out / "checkpoint").is_dir():
        raise ValueError(
            f"out: {config.out!r} has no run, but a file {found[0].name} that a run "
            "writes over; move the file, or choose another folder with --out"
        )


def settled(
    config: Config, checkpoints: Checkpoints, restart: bool, step: int | None
) -> Config:
    """Replaces `auto` by the choice of the run that goes on, else of this machine.

    The choice is part of a run: another machine must not choose differently.

    Args:
        config: Options of the run.
        checkpoints: Its checkpoints. They are locked if their folder is there.
        restart: Whether the checkpoints will be deleted.
        step: The checkpoint from which the run goes on; None for the newest.

    Returns:
        The options, with a precision without `auto`.

    Raises:
        ValueError: If the folder is in use, or the checkpoint cannot be read, or is not
            of a run.
    """
    half, started = bool(machine_of().pays("bfloat16")), {}
    if not restart and of_first(checkpoints.folder.is_dir()):
        checkpoints.lock()
        steps = checkpoints.steps()
        if steps and (step is None or step in steps):
            notes = checkpoints.notes(step)
            check_notes(notes, checkpoints.folder)
            started = notes["config"]
    if started.get("precision") == settle(config.precision, not half):
        half = not half
    precision = settle(config.precision, bool(of_first(half)))
    return dataclasses.replace(config, precision=precision)


def identity(config: Config, corpus: Corpus) -> dict[str, Any]:
    """Makes the notes by which a checkpoint is known to be of a run.

    Args:
        config: Options of the run.
        corpus: The text.

    Returns:
        Notes that JSON can hold.
    """
    vocabulary = corpus.vocabulary.tokens
    text = zlib.crc32(corpus.train.tobytes())
    return {
        "config": dataclasses.asdict(config),
        "vocabulary": list(vocabulary),
        "text": zlib.crc32("\n".join(vocabulary).encode(), text),
        "held_out": zlib.crc32(corpus.held_out.tobytes()),
    }


def check_notes(notes: dict[str, Any], folder: Path) -> None:
    """Refuses the notes of a checkpoint that is not of a run of `train`.

    Args:
        notes: The notes.
        folder: The folder of the checkpoint.

    Raises:
        ValueError: If they lack what `identity` gives to every run.
    """
    missing = [n for n in ("config", "vocabulary", "text") if n not in notes]
    if missing:
        raise ValueError(
            f"out: the checkpoint in {folder} was not saved by `train`: its notes have "
            f"no {missing[0]!r}, only {sorted(notes)}; if a program of yours saved it "
            "with `fit`, read it there with `resume`, or choose another folder "
            "(command: --out)"
        )


def check_same_run(now: dict[str, Any], notes: dict[str, Any]) -> None:
    """Refuses a checkpoint of a run with other options or another text.

    Args:
        now: What `identity` returns for the run that reads the checkpoint.
        notes: The notes of the checkpoint.

    Raises:
        ValueError: If they differ.
    """
    out = now["config"]["out"]
    way_out = "use the same, or start again with --restart, or elsewhere with --out"
    # An older run may lack options: what it did is their default.
    stored = dataclasses.asdict(Config()) | notes["config"]
    for name, value in now["config"].items():
        if name not in _FREE and value != stored[name]:
            raise ValueError(
                f"{name}: got {value!r}, but the run in {out} was started with "
                f"{stored[name]!r}; {way_out}"
            )
    # Older runs have no checksum of the held-out text.
    same_held_out = notes.get("held_out", now["held_out"]) == now["held_out"]
    if notes["text"] != now["text"] or not same_held_out:
        part = "held-out text" if notes["text"] == now["text"] else "text"
        raise ValueError(
            f"text: the run in {out} was started on another {part} (Python's "
            f"documentation differs from version to version); {way_out}"
        )
