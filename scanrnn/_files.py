"""Files that appear only when they are complete."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Write a file under a temporary name, and rename it when it is complete.

    If the block raises, the temporary file is deleted, and an older file stays. A new
    file has the permissions of the older one. Symbolic links stay: what they lead to is
    replaced.

    Args:
        path: the final path of the file. Its folder must exist.

    Yields:
        The temporary path to write to, in the same folder.

    Raises:
        FileNotFoundError: if the folder does not exist.
        IsADirectoryError: if the path is that of a folder.
        OSError: if the folder cannot be written.
        TypeError: if `path` is no path.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(pathlib.Path(folder) / "a.txt") as partial:
        ...         _ = partial.write_text("all of it")
        ...     [path.name for path in pathlib.Path(folder).iterdir()]
        ['a.txt']
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"path is of type {type(path).__name__}, want str or os.PathLike: where to "
            "write the file"
        )
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}; "
            "make it first, or give another path"
        )
    if path.is_dir():
        raise IsADirectoryError(
            f"cannot write {str(path)!r}: it is a folder; give the path of a file"
        )
    path = path.resolve()
    # Without the name of the file, which may be as long as the system allows.
    partial = path.with_name(f".partial-{secrets.token_hex(8)}")
    # Made like any new file: `tempfile` would let nobody else read it.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield partial
        # Else a power failure soon after could leave an empty file.
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        if path.exists():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
