"""What a program is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Program(NamedTuple):
    """A forward function with its data.

    Attributes:
      sizes: the sizes as text, such as `T=64 B=16 D=128 H=256`.
      params: a pytree of arrays, which training updates.
      inputs: a pytree of all other arrays.
      apply: `apply(params, inputs) -> outputs`, one array; features are its last axis.
      layer: the same function of the same params, written with a layer of ours; None
        if there is none.
    """

    sizes: str
    params: Any
    inputs: Any
    apply: Callable[[Any, Any], jax.Array]
    layer: Callable[[Any, Any], jax.Array] | None = None


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """Normal float32 numbers times `scale`, the same in every run."""
    rng = np.random.default_rng([seed, *shape])
    return scale * rng.standard_normal(shape, np.float32)


def lengths(batch: int, time: int) -> np.ndarray:
    """The lengths of sequences in a batch: from a quarter of the steps to all steps."""
    return np.linspace(time // 4, time, batch).astype(np.int32)
