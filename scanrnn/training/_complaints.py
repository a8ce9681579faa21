"""Silence the late error messages of a read that has already failed."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

# Orbax closes its event loop as soon as one array cannot be read. Reads that are still
# running then find the loop closed, or are collected half done.
_LATE = ("Event loop is closed", "Encountered error while reading array index")


def _is_late(error: BaseException | None) -> bool:
    return str(error).startswith(_LATE)


class _Hook:
    """An `unraisablehook` that does not print late error messages."""

    def __init__(self, before: Callable[["sys.UnraisableHookArgs"], object]) -> None:
        self.before = before

    def __call__(self, complaint: "sys.UnraisableHookArgs") -> None:
        if not _is_late(complaint.exc_value):
            self.before(complaint)


def _is_no_complaint(record: logging.LogRecord) -> bool:
    return not (record.exc_info and _is_late(record.exc_info[1]))


@contextlib.contextmanager
def without_late_complaints() -> Iterator[None]:
    """Silences the late error messages of array reads after one of them has failed.

    If one array cannot be read, Orbax gives up the other reads. Python prints a
    traceback for each of them later, when it collects the read. So after a failure
    inside this context, these messages, and no others, are dropped until the process
    ends.

    Example:
        >>> with without_late_complaints():
        ...     pass
    """
    log = logging.getLogger("asyncio")
    hook = sys.unraisablehook
    # Python adds the same filter only once. The check does so for the hook.
    log.addFilter(_is_no_complaint)
    if not isinstance(hook, _Hook):
        sys.unraisablehook = _Hook(hook)
    yield
    # Not reached after a failure: then filter and hook stay.
    if not isinstance(hook, _Hook):
        sys.unraisablehook = hook
        log.removeFilter(_is_no_complaint)
