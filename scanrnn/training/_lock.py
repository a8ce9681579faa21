"""A lock that lets one run at a time write into a folder."""

import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from scanrnn.training._files import writing


class FolderLock:
    """The right to write into a folder, held by one process at a time.

    The operating system releases the lock when the process ends, for whatever reason.

    Args:
        folder: The folder. It is created when the lock is taken.

    Raises:
        ValueError: If it is a file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lock = FolderLock(folder)
        ...     lock.take()
        ...     FolderLock(folder).take()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: out: '...' is in use by this process; close the `Checkpoints` ...
    """

    def __init__(self, folder: str | Path):
        """Does not take the lock yet."""
        self.folder = Path(folder)
        if self.folder.is_file():
            raise ValueError(f"out: {str(self.folder)!r} is a file, want a folder")
        # Any thread may give the lock back, not only the one that took it.
        self._lock = FileLock(self.folder / ".lock", timeout=0, thread_local=False)
        # A file of its own, because filelock decides what is in the lock file.
        self._owner = self.folder / ".owner"

    def take(self) -> None:
        """Takes the lock.

        Raises:
            ValueError: If another process or another `FolderLock` has it, or the folder
                cannot be written.
        """
        me = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._take()
                self._owner.write_text(me, encoding="utf-8")
        except _Taken:
            owner = self._read_owner()
            way_out = "wait for it, stop it, or choose another folder (command: --out)"
            if owner == me:
                owner = "this process"
                way_out = "close the `Checkpoints` that has it first"
            raise ValueError(
                f"out: {str(self.folder)!r} is in use by {owner}; {way_out}"
            ) from None

    def _take(self) -> None:
        try:
            self._lock.acquire()
        # `Timeout` is an OSError, which `writing` would report as one of the disk.
        except Timeout:
            raise _Taken from None

    def _read_owner(self) -> str:
        try:
            return self._owner.read_text(encoding="utf-8")
        except OSError:
            return "another process"

    def give_back(self) -> None:
        """Gives the lock back; does nothing if it is not held."""
        if self._lock.is_locked:
            self._owner.unlink(missing_ok=True)
            self._lock.release()


class _Taken(Exception):
    """Another process has the lock."""
