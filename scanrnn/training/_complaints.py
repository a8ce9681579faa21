"""What is said about a failed read after it has failed."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_late_complaints() -> Iterator[None]:
    """Drops what reads of arrays complain of when one of them fails.

    Orbax closes its event loop as soon as one array cannot be read. The reads that
    still go on then find it closed, each with a traceback, at some later time: after a
    failure these complaints alone are dropped for as long as the process lives.

    Example:
        >>> with without_late_complaints():
        ...     pass
    """
    before = sys.unraisablehook

    def hook(complaint: "sys.UnraisableHookArgs") -> None:
        if str(complaint.exc_value) != "Event loop is closed":
            before(complaint)

    sys.unraisablehook = hook
    yield
    # Not reached after a failure.
    sys.unraisablehook = before
