"""What is said about a failed read after it has failed."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

# Orbax closes its event loop as soon as one array cannot be read.  The reads that still
# go on then find it closed, or are thrown away half done.
_LATE = ("Event loop is closed", "Encountered error while reading array index")


def _is_late(error: BaseException | None) -> bool:
    return str(error).startswith(_LATE)


class _Hook:
    """An `unraisablehook` that says nothing of late complaints."""

    def __init__(self, before: Callable[["sys.UnraisableHookArgs"], object]) -> None:
        self.before = before

    def __call__(self, complaint: "sys.UnraisableHookArgs") -> None:
        if not _is_late(complaint.exc_value):
            self.before(complaint)


def _is_no_complaint(record: logging.LogRecord) -> bool:
    return not (record.exc_info and _is_late(record.exc_info[1]))


@contextlib.contextmanager
def without_late_complaints() -> Iterator[None]:
    """Drops what reads of arrays complain of when one of them fails.

    Each read that Orbax gives up complains with a traceback at some later time, when
    Python collects it: after a failure these complaints alone are dropped for as long
    as the process lives.

    Example:
        >>> with without_late_complaints():
        ...     pass
    """
    log = logging.getLogger("asyncio")
    hook = sys.unraisablehook
    # A filter that is there is not added again; neither is the hook.
    log.addFilter(_is_no_complaint)
    if not isinstance(hook, _Hook):
        sys.unraisablehook = _Hook(hook)
    yield
    # Not reached after a failure.
    if not isinstance(hook, _Hook):
        sys.unraisablehook = hook
        log.removeFilter(_is_no_complaint)
