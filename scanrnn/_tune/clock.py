"""How long a program takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax


def time_of(run: Callable, *args: Any) -> float:
    """The wall time of one call of a function, until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(run(*args))
    return time.perf_counter() - start
