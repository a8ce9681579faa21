"""Checks of the arguments of `Streaming`."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx as flax_nnx

from scanrnn import nnx
from scanrnn.cells._checks import check_size
from scanrnn.nnx._foreign import changing
from scanrnn.serving._program import feature_axes

# A chunk of a kind may be cast to each of the kinds after it.
_KINDS = (np.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def array(chunk: Any, dtype: np.dtype, *name: Any) -> np.ndarray:
    """The chunk in the dtype of the inputs; raise TypeError if its kind is wider.

    Only the kinds are compared. Within one, numbers are cast: floats are rounded, and
    integers that are too large wrap around.
    """
    try:
        found = np.asarray(chunk)
    except ValueError as error:  # lists of different lengths
        raise ValueError(
            f"Streaming: {' '.join(map(str, name))} is no array of numbers; give each "
            "of several streams its own chunk, as a dict"
        ) from error
    if found.dtype == dtype:
        return found
    if _rank(found.dtype) > _rank(dtype):
        raise TypeError(
            f"Streaming: {' '.join(map(str, name))} has dtype {found.dtype}, which "
            f"does not go into {dtype}; convert it, or give Streaming(dtype=...)"
        )
    return found.astype(dtype)


def chunk(given: Any, dtype: np.dtype, features: tuple, stream: Any) -> np.ndarray:
    """The chunk of one stream; raise unless its shape is `[t, *features]`."""
    found = array(given, dtype, "the chunk of stream", stream)
    if not found.ndim or found.shape[1:] != features:
        raise ValueError(
            f"Streaming: the chunk of stream {stream} has shape {found.shape}, want "
            f"(t, {', '.join(map(str, features))})"
        )
    return found


def _rank(dtype):
    kinds = (rank for rank, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind))
    return next(kinds, len(_KINDS))


def number(stream: Any) -> None:
    """Raise unless it is an integer. A dict takes True for 1, and 0.0 for 0."""
    try:
        operator.index(stream)
        known = not isinstance(stream, bool)
    except TypeError:
        known = False
    if not known:
        raise TypeError(
            f"Streaming: the number of a stream is an integer, got {stream!r} of type "
            f"{type(stream).__name__}"
        )


def several(streams: Any) -> Iterable:
    """The numbers of streams. Python takes an array of no axes for iterable."""
    one = not isinstance(streams, Iterable) or getattr(streams, "shape", None) == ()
    return [streams] if one else streams


def joined(stream: Any, open: np.ndarray) -> None:
    """Raise unless a stream has joined there."""
    number(stream)
    if not (0 <= stream < len(open) and open[stream]):
        raise KeyError(
            f"Streaming: there is no stream {stream!r}; those that have joined are "
            f"{np.flatnonzero(open).tolist()}"
        )


def known(carry: Any) -> Any:
    """The carries; raise RuntimeError if an exception in a call has lost them."""
    if carry is None:
        raise RuntimeError(
            "Streaming: an exception ended an earlier call while it computed, so how "
            "far the streams are is not known; call reset() to start all of them anew, "
            "or restore(state) with a state from before"
        )
    return carry


def is_donated(carry: Any) -> bool:
    """Whether a computation has been given the memory of a carry."""
    return any(a.is_deleted() for a in jax.tree.leaves(carry))


def arguments(rnn, streams, buckets):
    """Raise TypeError or ValueError for arguments that `Streaming` cannot take."""
    if isinstance(rnn, nnx.Bidirectional | flax_nnx.Bidirectional):
        raise TypeError(
            f"Streaming: rnn is a {type(rnn).__name__}: it reads a sequence from its "
            "end too, which a stream has not reached yet; give a layer that reads "
            "forwards, or call this one on whole sequences (serving.to_onnx exports it)"
        )
    if isinstance(rnn, flax_nnx.RNNCellBase):
        raise TypeError(
            f"Streaming: rnn is a {type(rnn).__name__}, which makes one step; give the "
            "layer of it: Streaming(scanrnn.nnx.RNN(cell), features=(D,))"
        )
    if not isinstance(rnn, nnx.RNN):
        raise TypeError(
            f"Streaming: rnn is of type {type(rnn).__name__}, want a layer of "
            "scanrnn.nnx; scanrnn.interop converts the weights of other layers"
        )
    for name in ("bidirectional", "reverse"):
        if getattr(rnn, name):
            raise ValueError(
                f"Streaming: the layer has {name}=True: it reads a sequence from its "
                "end, which a stream has not reached yet; make one that reads forwards"
            )
    check_size("Streaming", "streams", streams)
    _check_sizes("buckets", buckets)
    if not buckets or list(buckets) != sorted(set(buckets)):
        raise ValueError(
            f"Streaming: buckets={tuple(buckets)}, want ascending numbers from 1 on"
        )


def _check_sizes(name, sizes):
    """Raise unless it is a sequence of positive integers."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        raise TypeError(
            f"Streaming: {name}={sizes!r}, want a tuple of integers such as (1, 4)"
        )
    for index, size in enumerate(sizes):
        check_size("Streaming", f"{name}[{index}]", size)


def features(rnn, given):
    """The shape of a step; raise if it is wrong, or neither given nor known."""
    if given is not None:
        _check_sizes("features", given)
        return tuple(given)
    if rnn.in_features is None or feature_axes(rnn) != 1:
        raise ValueError(
            "Streaming: the shape of a step is not known for this layer; give "
            "features=, such as (height, width, channels)"
        )
    return (rnn.in_features,)


def saved(state, kept):
    """The arrays of a saved state; raise unless they are like those that are kept."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"Streaming: the state is a {type(state).__name__}, want the dict that "
            "state() returned"
        )
    arrays = {name: np.asarray(a) for name, a in state.items()}
    found, wanted = (
        {name: (a.shape, a.dtype) for name, a in each.items()}
        for each in (arrays, kept)
    )
    if found != wanted:
        raise ValueError(
            f"Streaming: the state has {found}, want {wanted}, of a Streaming of the "
            "same layer and as many streams"
        )
    return arrays


def state(rnn, carry, shape, dtype):
    """Raise ValueError if steps change a state that no chunk hands to the next."""
    names = changing(rnn, carry, jax.ShapeDtypeStruct(shape, dtype))
    if names:
        raise ValueError(
            f"Streaming: each step of the layer's {type(rnn.cell).__name__} changes "
            f"its state {', '.join(names)}, and only the carry goes from one chunk to "
            "the next; put it into the carry, or call rnn.eval() first if it belongs "
            "to training, such as the counter of dropout"
        )
