"""Keys of the parameters of equations: equal keys, equal parameters.

Python's own equality does not do: `True == 1`, `0.0 == -0.0`, and NaN equals nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh

_FLOATS = (float, complex, np.generic)


class UnknownError(Exception):
    """Something whose equality does not show that two programs do the same."""


def key_of(value: Any, of_program: Callable[[Any], Hashable] | None = None) -> Hashable:
    """The key of a parameter of an equation, or of a part of one.

    Args:
      value: the parameter.
      of_program: makes the key of a jaxpr in it; None if it should have none.

    Raises:
      UnknownError: if the parameter cannot be compared: an array, or a function that
        was made while the step was traced.
    """
    key = functools.partial(key_of, of_program=of_program)
    if isinstance(value, _FLOATS):
        return type(value), np.asarray(value).tobytes()
    if isinstance(value, dict):
        return dict, tuple((name, key(item)) for name, item in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(map(key, value))
    if isinstance(value, ClosedJaxpr | Jaxpr):
        if of_program is None:
            raise UnknownError
        return of_program(value)
    if isinstance(value, functools.partial):
        return functools.partial, key((value.func, value.args, value.keywords))
    # A mesh can be called too, as a decorator.
    if callable(value) and not isinstance(value, Mesh) and not _is_global(value):
        raise UnknownError
    # With the type, as True equals 1.
    return type(value), _hashable(value)


def _is_global(function: Any) -> bool:
    """Whether a function or a class can be found in its module by its name."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", None) or ""
    return bool(name) and getattr(module, name, None) is function


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        raise UnknownError from None
    return value
