"""Whether every option that was given to `train` has an effect."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def check(given: Mapping[str, Any], *contexts: Mapping[str, Any]) -> None:
    """Refuses an option that the others leave without effect.

    Args:
        given: The options that were given in one place, on the command line or in a
            file.
        *contexts: All options, with those of the recipe and the defaults. An option
            needs an effect in one of these contexts: a file's options may have one
            without what the command line overrides, or with it.

    Raises:
        ValueError: If one has no effect.
    """
    *others, unused = map(_unused, contexts)
    for name, value in given.items():
        if name in unused and all(name in other for other in others):
            raise ValueError(
                f"{name}: got {value!r}, which has no effect: {unused[name]}"
            )


def _unused(options: Mapping[str, Any]) -> dict[str, str]:
    """Why some options have no effect, by name."""
    folder = bool(options["text"]) and Path(str(options["text"])).is_dir()
    characters = options["tokens"] == "characters"
    lengths = [f"{n}={options[n]}" for n in ("steps", "epochs") if options[n]]
    decay = (
        options["optimizer"] == "adamw",
        "adamw has a schedule of its own; leave it out, or add --optimizer sgd",
    )
    unused = {
        "tokens": (
            folder and characters,
            "a folder in PTB's format has words; give a text file, or leave it out",
        ),
        "held_out": (
            folder,
            "a folder in PTB's format has a file for evaluation; leave it out",
        ),
        "vocabulary": (
            characters and not folder and options["vocabulary"],
            "all characters are kept; leave it out, or add --tokens words",
        ),
        "minutes": (
            lengths,
            f"the run has {' and '.join(lengths)}, from the recipe if you gave none; "
            "leave it out, or add --steps 0 --epochs 0",
        ),
        "decay": decay,
        "decay_after": decay,
    }
    return {name: why for name, (holds, why) in unused.items() if holds}
