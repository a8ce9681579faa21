"""Checks of the arguments of `Streaming`."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from scanrnn import nnx

# Each kind can represent the kinds before it.
_KINDS = (np.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def array(chunk: Any, dtype: np.dtype, *name: Any) -> np.ndarray:
    """The chunk in the dtype of the inputs; raise TypeError if that loses numbers."""
    found = np.asarray(chunk)
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
    if isinstance(stream, bool) or not hasattr(stream, "__index__"):
        raise TypeError(
            f"Streaming: the number of a stream is an integer, got {stream!r} of type "
            f"{type(stream).__name__}"
        )


def arguments(rnn, streams, buckets):
    """Raise TypeError or ValueError for arguments that `Streaming` cannot take."""
    if not isinstance(rnn, nnx.RNN):
        raise TypeError(
            f"Streaming: rnn is a {type(rnn).__name__}, want a layer of scanrnn.nnx; "
            "scanrnn.interop converts the weights of other layers"
        )
    for name in ("bidirectional", "reverse"):
        if getattr(rnn, name):
            raise ValueError(
                f"Streaming: the layer has {name}=True: it reads a sequence from its "
                "end, which a stream has not reached yet; make one that reads forwards"
            )
    if streams < 1:
        raise ValueError(f"Streaming: streams={streams}, want at least 1")
    if list(buckets) != sorted(set(buckets)) or not buckets or buckets[0] < 1:
        raise ValueError(
            f"Streaming: buckets={tuple(buckets)}, want ascending numbers from 1 on"
        )
