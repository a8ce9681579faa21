"""The carries of Flax's LSTMs, (c, h), from ours, (h, c), and back."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def from_flax(cls: Callable[..., T], carry: tuple[jax.Array, jax.Array]) -> T:
    """Make the carry from that of Flax's cell, the pair (c, h).

    To call the class with `*carry` would confuse c and h.

    Args:
        cls: the class of the carry.
        carry: the pair (c, h) of Flax.

    Returns:
        The same carry, with named fields.

    Raises:
        TypeError: if `carry` is no pair.
    """
    if not isinstance(carry, tuple | list) or len(carry) != 2:
        raise TypeError(
            f"{getattr(cls, '__name__', cls)}.from_flax: carry must be the pair (c, h) "
            f"of Flax's cell, got {carry!r}"
        )
    c, h = carry
    return cls(h=h, c=c)


def to_flax(self: Any) -> tuple[jax.Array, jax.Array]:
    """The pair (c, h), which is the carry of Flax's cell."""
    return self.c, self.h
