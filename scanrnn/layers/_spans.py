"""Which steps of a sequence count, and before which it starts anew.

Lengths, masks, packed segments and resets are four ways to say two arrays.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import core


class Spans(NamedTuple):
    """Two boolean arrays `[T, *batch]`, and the lengths for turning sequences round.

    Attributes:
        counts: where False, the carry stays as it is and the input is not looked at;
            None if all steps count.
        starts: where True, the carry is a fresh one before the step of a run forward;
            None for nowhere.
        starts_backward: the same of a run backward, where a segment starts at its end.
        lengths: `[*batch]`, or None if all are T steps long.
    """

    counts: jax.Array | None = None
    starts: jax.Array | None = None
    starts_backward: jax.Array | None = None
    lengths: jax.Array | None = None


def spans(
    shape: tuple[int, ...],
    time_axis: int,
    *,
    seq_lengths: Any = None,
    mask: Any = None,
    segment_ids: Any = None,
    resets: Any = None,
) -> Spans:
    """Make the spans that the arguments of a layer say, all of them together.

    Args:
        shape: of the inputs without features.
        time_axis: of it.
        seq_lengths: integers `[*batch]`, from 0 to T.
        mask: booleans of `shape`.
        segment_ids: integers of `shape`: 0 for steps that do not count; a sequence
            starts where another number begins.
        resets: booleans of `shape`.

    Raises:
        TypeError: if an argument has the wrong dtype.
        ValueError: if one has the wrong shape, or a length is not between 0 and T.
    """
    T = shape[time_axis]
    batch = shape[:time_axis] + shape[time_axis + 1 :]
    read = functools.partial(_read, shape=shape, time_axis=time_axis)
    counts, starts, backward = [], [], []
    if seq_lengths is not None:
        seq_lengths = _lengths(seq_lengths, batch, T)
        steps = jnp.arange(T).reshape(T, *(1 for _ in batch))
        counts.append(steps < seq_lengths)
    if resets is not None:
        resets = read("resets", resets, jnp.bool_)
        # A reset in the padding must not touch the carry that is returned.
        starts.append(resets & counts[0] if counts else resets)
        backward.append(starts[0])
    if mask is not None:
        counts.append(read("mask", mask, jnp.bool_))
    if segment_ids is not None:
        ids = read("segment_ids", segment_ids, jnp.integer)
        counts.append(ids != 0)
        # The first step of all continues what is carried in.
        edges = ids[1:] != ids[:-1]
        inside = jnp.zeros_like(ids[:1], bool)
        starts.append(jnp.concatenate([inside, edges]) & (ids != 0))
        backward.append(jnp.concatenate([edges, inside]) & (ids != 0))
    return Spans(
        functools.reduce(operator.and_, counts) if counts else None,
        functools.reduce(operator.or_, starts) if starts else None,
        functools.reduce(operator.or_, backward) if starts else None,
        seq_lengths,
    )


def _read(name, value, kind, *, shape, time_axis):
    """The argument as an array with time first."""
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, kind):
        wanted = "booleans" if kind is jnp.bool_ else "integers"
        hint = f"; write {name} != 0" if kind is jnp.bool_ else ""
        raise TypeError(f"RNN: {name} has dtype {value.dtype}, want {wanted}{hint}")
    if value.shape != shape:
        raise ValueError(
            f"RNN: {name} has shape {value.shape}, want {shape}: that of the inputs "
            "without their features"
        )
    return jnp.moveaxis(value, time_axis, 0)


def _lengths(lengths, batch, T):
    """The lengths as an array; those that can be read are checked."""
    lengths = jnp.asarray(lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(
            f"RNN: seq_lengths has dtype {lengths.dtype}, want integers; for a mask of "
            "booleans there is mask="
        )
    if lengths.shape != batch:
        raise ValueError(
            f"RNN: seq_lengths has shape {lengths.shape}, want {batch}: the batch axes "
            "of the inputs"
        )
    if lengths.size and not isinstance(lengths, core.Tracer):
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > T:
            raise ValueError(
                f"RNN: seq_lengths has values from {low} to {high}, want 0 to {T}, the "
                "number of steps of the inputs"
            )
    return lengths
