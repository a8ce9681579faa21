"""Reads and writes in the folder of a run, which other processes may change."""

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
    """Turns an error of the file system into a `ValueError` that names `out`.

    Other errors stay as they are.

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
    except (OSError, ValueError) as error:
        # Orbax's library of files raises a ValueError with the number of an OSError.
        if isinstance(error, ValueError) and "os_error_code" not in str(error):
            raise
        raise ValueError(
            f"out: cannot write in {str(folder)!r} ({brief(error)}); make room for it "
            "or choose another folder (command: --out)"
        ) from error


def brief(error: Exception) -> str:
    r"""Writes an error as one line of text.

    Args:
        error: An error of the file system or of Orbax. Orbax appends pages of settings.

    Returns:
        The message before these settings.

    Example:
        >>> brief(OSError("no\nspace [tensorstore_spec={...}]"))
        'no space'
    """
    return " ".join(str(error).partition("[tensorstore_spec")[0].split())


def retried(read: Callable[[], T], seconds: float = 30.0) -> T:
    """Calls `read` again while a file is missing that another process has deleted.

    Args:
        read: A function that reads files in a folder that another process changes.
        seconds: How long to try.

    Returns:
        What `read` returns.

    Raises:
        FileNotFoundError: If a file is still missing after this time.
    """
    give_up = time.monotonic() + seconds
    while True:
        try:
            return read()
        except FileNotFoundError:
            if time.monotonic() > give_up:
                raise
        time.sleep(_PAUSE)
