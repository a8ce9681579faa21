"""Writing into the folder of a run: errors that name the folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


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
            f"out: cannot write in {str(folder)!r} ({error}); make room for it or "
            "choose another folder with --out"
        ) from error
