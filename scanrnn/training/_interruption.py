"""Ctrl-C as a request to stop, not as an exception in the middle of a step."""

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """A context in which the first SIGINT or SIGTERM only sets `signal`.

    A second signal has its usual effect. A signal that was ignored before, as SIGINT is
    in a background job of a shell script, is still ignored. One that a program in C
    handles is left to it. Only the main thread can handle signals; in other threads the
    context does nothing.

    Attributes:
        signal: The number of the signal; None if there was none.

    Example:
        >>> import os, signal
        >>> with Interruption() as interruption:
        ...     os.kill(os.getpid(), signal.SIGINT)
        ...     print(interruption.signal == signal.SIGINT)
        True
    """

    def __init__(self) -> None:
        """Starts with no signal."""
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        """Starts to handle the two signals."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # None: the handler is not of Python, which could not restore it.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        """Restores the handlers of the two signals."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal = number
        self.__exit__()
