"""The folder of a run: errors that name it, and others that change it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Seconds between two attempts to read.
_PAUSE = 0.02


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what the file system refuses into an error that names `out`.

    Args:
        folder: The folder of the run.

    Raises:
        ValueError: If something in the folder cannot be written.

    Example:
        >>> import pathlib
        >>> with writing(pathlib.Path("run")):  # doctest: +ELLIPSIS
        ...     raise OSError("disk full")
        Traceback (most recent call last):
            ...
        ValueError: out: cannot write in 'run' (disk full); make room for it or ...
    """
    try:
        yield
    # Orbax gives a ValueError when the disk is full.
    except (OSError, ValueError) as error:
        raise ValueError(
            f"out: cannot write in {str(folder)!r} ({brief(error)}); make room for it "
            "or choose another folder with --out"
        ) from error


def brief(error: Exception) -> str:
    r"""Writes an error in one line.

    Args:
        error: Of the file system or of Orbax, which appends pages of settings.

    Returns:
        What it says before them.

    Example:
        >>> brief(OSError("no\nspace [tensorstore_spec={...}]"))
        'no space'
    """
    return " ".join(str(error).partition("[tensorstore_spec")[0].split())


def retried(read: Callable[[], T], seconds: float = 30.0) -> T:
    """What `read` gives; read again where another process took a file away meanwhile.

    Args:
        read: Reads files of a folder that somebody else is changing.
        seconds: How long it is tried.

    Raises:
        FileNotFoundError: If a file is gone every time.
    """
    give_up = time.monotonic() + seconds
    while True:
        try:
            return read()
        except FileNotFoundError:
            if time.monotonic() > give_up:
                raise
        time.sleep(_PAUSE)
