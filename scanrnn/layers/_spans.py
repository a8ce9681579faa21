"""Which steps of a sequence count, and before which steps a new sequence starts.

Lengths, masks, packed segments and resets all become the same two boolean arrays.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import core, lax

from scanrnn.layers._checks import as_array


class Spans(NamedTuple):
    """Boolean arrays `[T, *batch]`, and the lengths of the sequences.

    Attributes:
        counts: where False, the carry stays as it is and the input is ignored; None if
            all steps count.
        starts: where True, the carry is reset before the step, in a forward run; None
            if it never is. Such a step counts.
        starts_backward: the same for a backward run, in which a sequence starts at its
            end.
        lengths: `[*batch]`; None if all sequences have T steps.
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
    """Make the spans from the arguments of a layer; all arguments hold together.

    Args:
        shape: shape of the inputs without features.
        time_axis: the time axis of `shape`.
        seq_lengths: integers `[*batch]`, from 0 to T. Traced ones cannot be checked:
            they are clipped to this range.
        mask: booleans of `shape`; where False, a step does not count.
        segment_ids: integers of `shape`, at least 0. Steps with 0 do not count. A new
            sequence starts where the number changes.
        resets: booleans of `shape`; a new sequence starts at a step with True.

    Raises:
        TypeError: if an argument has the wrong dtype.
        ValueError: if one has the wrong shape, a length is not between 0 and T, or the
            number of a segment is negative or too large for JAX.
    """
    T = shape[time_axis]
    batch = shape[:time_axis] + shape[time_axis + 1 :]
    read = functools.partial(_read, shape=shape, time_axis=time_axis)
    counts, starts = [], []
    if resets is not None:
        starts.append(read("resets", resets, jnp.bool_))
    if mask is not None:
        counts.append(read("mask", mask, jnp.bool_))
    if segment_ids is not None:
        ids = read("segment_ids", segment_ids, jnp.integer)
        _check_ids(segment_ids, ids.dtype)
        counts.append(ids != 0)
        # The first step continues the initial carry.
        first = jnp.zeros_like(ids[:1], bool)
        starts.append(jnp.concatenate([first, ids[1:] != ids[:-1]]))
    gaps = bool(counts)
    if seq_lengths is not None:
        seq_lengths = _lengths(seq_lengths, batch, T)
        steps = jnp.arange(T, dtype=jnp.int32).reshape(T, *(1 for _ in batch))
        counts.append(steps < seq_lengths[None])
        # Nothing starts in the padding.
        starts = [edges & counts[-1] for edges in starts]
    counts = functools.reduce(operator.and_, counts) if counts else None
    if not starts:
        return Spans(counts, lengths=seq_lengths)
    forward = functools.reduce(operator.or_, starts)
    # Backward, what starts at a step is entered at the step before it.
    backward = jnp.concatenate([forward[1:], jnp.zeros_like(forward[:1])])
    if gaps:
        forward = _delayed(forward, counts, reverse=False)
        backward = _delayed(backward, counts, reverse=True)
    return Spans(counts, forward, backward, seq_lengths)


def _delayed(starts, counts, reverse):
    """Starts, each moved on to the first step that counts: others change no carry."""
    number = lax.cumsum(starts.astype(jnp.int32), 0, reverse)
    seen = lax.cummax(jnp.where(counts, number, 0), 0, reverse)
    none = jnp.zeros_like(seen[:1])
    parts = [seen[1:], none] if reverse else [none, seen[:-1]]
    return counts & (number > jnp.concatenate(parts))


def _read(name, value, kind, *, shape, time_axis):
    """The argument as an array with time as its first axis."""
    wanted = "booleans" if kind is jnp.bool_ else "integers"
    value = as_array(value, name, f"{wanted},")
    if not jnp.issubdtype(value.dtype, kind):
        hint = f"; write {name} != 0" if kind is jnp.bool_ else ""
        raise TypeError(f"RNN: {name} has dtype {value.dtype}, want {wanted}{hint}")
    if value.shape != shape:
        raise ValueError(
            f"RNN: {name} has shape {value.shape}, want {shape}: that of the inputs "
            "without their features"
        )
    return jnp.moveaxis(value, time_axis, 0)


def _check_ids(given, dtype):
    """Raise ValueError for a number of a segment that is negative, or that wraps."""
    low, high = _range(given) or (0, 0)
    if low < 0:
        raise ValueError(
            f"RNN: segment_ids has the value {low}, want segments numbered from 1, "
            "and 0 for steps that do not count"
        )
    # JAX makes arrays of 32 bits of those of NumPy, unless it is in its x64 mode.
    if high > jnp.iinfo(dtype).max:
        raise ValueError(
            f"RNN: segment_ids has the value {high}, which does not fit into {dtype}; "
            "number the segments of each row from 1"
        )


def _lengths(lengths, batch, T):
    """The lengths as an array, from 0 to T: checked, or clipped if they are traced."""
    given, lengths = lengths, as_array(lengths, "seq_lengths", "integers,")
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
    # At least 32 bits, so that neither T nor T + 1 overflows.
    if lengths.dtype.itemsize < 4:
        lengths = lengths.astype(jnp.int32)
    found = _range(given)
    if found is None:
        # In the dtype of the lengths: a large one of 64 bits must not wrap.
        T = jnp.asarray(T, lengths.dtype)
        return jnp.clip(lengths, jnp.zeros_like(T), T).astype(jnp.int32)
    low, high = found
    if low < 0 or high > T:
        raise ValueError(
            f"RNN: seq_lengths has values from {low} to {high}, want 0 to {T}, the "
            "number of steps of the inputs"
        )
    return lengths.astype(jnp.int32)


def _range(value):
    """The smallest and the largest integer; None if they are traced.

    Inside a traced function, arrays that it closes over are not traced.
    """
    if any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(value)):
        return None
    with jax.ensure_compile_time_eval():
        # JAX would wrap integers of more than 32 bits.
        value = value if hasattr(value, "min") else jnp.asarray(value)
        return (int(value.min()), int(value.max())) if value.size else (0, 0)
