"""Files that appear only when they are complete."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Write a file under a temporary name, and rename it when it is complete.

    If the block raises, the temporary file is deleted, and an older file stays.

    Args:
        path: the final path of the file. Its folder must exist.

    Yields:
        The temporary path to write to, in the same folder.

    Raises:
        OSError: if the folder cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(pathlib.Path(folder) / "a.txt") as partial:
        ...         _ = partial.write_text("all of it")
        ...     [path.name for path in pathlib.Path(folder).iterdir()]
        ['a.txt']
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent or ".")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~_UMASK)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _umask():
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# Read once: while it is set, other threads would create files with it.
_UMASK = _umask()
