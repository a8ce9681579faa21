"""Arrays of all steps that a loop reads, and writes other values over.

XLA gives what a loop stacks memory of its own, and fills it with zeros first. An
array that a trip reads and then overwrites it copies, whole, at every trip, unless
every read comes after the write. So values are written one trip late: a trip first
writes what the trip before it made, and then reads its own row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Var

from scanrnn.planner import ops


def pair_up(written: Iterable[Var], read: Iterable[Var]) -> dict[Var, Var]:
    """For what is written, what of the same type can be overwritten."""
    free, pairs = list(read), {}
    for v in dict.fromkeys(written):
        fits = [u for u in free if _type(u) == _type(v)]
        if fits:
            pairs[v] = fits[0]
            free.remove(fits[0])
    return pairs


def _type(v):
    return ops.aval(v).shape, ops.aval(v).dtype


@dataclasses.dataclass(frozen=True)
class Late:
    """Writes one trip late, in a loop of `length` steps, from the last if `reverse`."""

    length: int
    reverse: bool

    @property
    def first(self) -> int:
        """The step of the first trip."""
        return self.length - 1 if self.reverse else 0

    def start(self, arrays: Sequence) -> list:
        """What the first trip writes: what is there."""
        return [lax.index_in_dim(a, self.first, keepdims=False) for a in arrays]

    def write(self, arrays: Sequence, rows: Sequence, t) -> list:
        """Write the rows that the trip before that of step `t` made."""
        if not arrays:
            return []
        before = t + 1 if self.reverse else t - 1
        before = jnp.clip(before, 0, self.length - 1)
        return [_put(a, row, before) for a, row in zip(arrays, rows, strict=True)]

    def finish(self, arrays: Sequence, rows: Sequence) -> list:
        """Write the rows of the last trip.

        In a loop of its own, which writes the same twice: a bare update XLA fuses
        with everything that reads the array, and copies the array for each.
        """
        if not arrays:
            return []
        last = self.length - 1 - self.first

        def write(_, arrays):
            return [_put(a, row, last) for a, row in zip(arrays, rows, strict=True)]

        return lax.fori_loop(0, 2, write, list(arrays))


def _put(array, row, t):
    return lax.dynamic_update_index_in_dim(array, row.astype(array.dtype), t, 0)


def piece(
    arrays: Mapping[Var, Any], t, v: Var, axis: int | None = None, start=0, size=0
):
    """One step of an array: all of it, or a piece along `axis` of the step.

    It is one slice of the whole sequence, and not a slice of a slice.
    """
    if axis is None:
        return lax.dynamic_index_in_dim(arrays[v], t, keepdims=False)
    whole = arrays[v]
    starts, sizes = [np.int32(0)] * whole.ndim, list(whole.shape)
    starts[0], sizes[0] = t, 1
    starts[axis + 1], sizes[axis + 1] = np.int32(start), size
    return lax.squeeze(lax.dynamic_slice(whole, starts, sizes), [0])
