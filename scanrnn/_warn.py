"""Warnings that name the line of the user who caused them."""

import sys
import warnings

# What lies between a user and our code.
_BETWEEN = {"scanrnn", "flax", "jax", "contextlib", "functools"}


def warn(message: str) -> None:
    """Warn at the first line outside of this package, Flax and JAX.

    `skip_file_prefixes` of Python 3.12 would do the same, but not in 3.11.

    Args:
        message: the text of the UserWarning.
    """
    frame, level = sys._getframe(1), 2
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level - 1 if frame is None else level)
