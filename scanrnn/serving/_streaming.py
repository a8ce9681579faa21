"""A layer that runs as its inputs arrive, for many streams at once."""

import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx as flax_nnx

from scanrnn import nnx
from scanrnn.cells._checks import check_dtype
from scanrnn.serving import _streaming_checks as checks
from scanrnn.serving._streaming_parts import alone, as_one, each, named, started


class Streaming:
    r"""A recurrent layer whose carries are kept between calls.

    .. math:: (s, y_{a:b}) = \mathrm{rnn}(s, x_{a:b})

    The outputs of all chunks are those of the whole sequence, up to rounding. A chunk
    may have any length. It is padded to the next of a few `buckets`; the padding does
    not change a carry. So at most two programs are compiled for each bucket. A chunk
    longer than the largest bucket is processed in pieces.

    On a CPU, JAX runs a program in another thread, and waking that thread takes longer
    than a small step. A serving process should run programs in the calling thread: call
    `jax.config.update("jax_cpu_enable_async_dispatch", False)` before its first array.

    There are places for a fixed number of streams. At the start all are taken, so a
    server first calls `leave` for each. A stream that joins starts with a fresh carry.
    All streams are computed together. Several threads may call the methods: each waits
    until the others are ready. If an exception such as Ctrl-C ends a call while it
    computes, the carries may be lost: call `reset()`, or `restore` an earlier state.

    Args:
        rnn: a layer of `scanrnn.nnx`, in one direction. Its weights are copied: later
            changes have no effect. It runs without dropout and noise, and batch-major.
        streams: B, the number of places.
        buckets: lengths in time steps, ascending.
        features: the shape of one step of one stream; None for `(rnn.in_features,)`.
        dtype: dtype of the inputs. Chunks are cast to it, as by NumPy's `astype`.

    Raises:
        TypeError: if `rnn` is not a layer of `scanrnn.nnx`, a size not an integer, or
            `dtype` not a dtype.
        ValueError: if `rnn` is bidirectional or runs backwards, or its steps change
            state that is not in the carry; for fewer than one place, for wrong
            `buckets`, or if `features` is None and not known.

    Example:
        >>> import numpy as np, scanrnn
        >>> from flax import nnx
        >>> rnn = scanrnn.nnx.LSTM(3, 5, rngs=nnx.Rngs(0))
        >>> xs = np.random.default_rng(0).normal(size=(2, 30, 3)).astype("f4")
        >>> stream = scanrnn.serving.Streaming(rnn, streams=2)
        >>> parts = [stream(xs[:, :7]), stream(xs[:, 7:8]), stream(xs[:, 8:])]
        >>> bool(np.allclose(np.concatenate(parts, axis=1), rnn(xs), atol=1e-6))
        True
        >>> stream.leave(0)
        >>> stream.join()  # a new one, in place of the one that left
        0
        >>> stream({0: xs[0, :4]})[0].shape  # the other waits
        (4, 5)
    """

    def __init__(
        self,
        rnn: nnx.RNN,
        streams: int = 1,
        *,
        buckets: Sequence[int] = (1, 4, 16, 64, 256),
        features: Sequence[int] | None = None,
        dtype: Any = np.float32,
    ):
        """Make the carries; see the class."""
        checks.arguments(rnn, streams, buckets)
        self.streams, self.buckets = streams, tuple(buckets)
        self.features = checks.features(rnn, features)
        self.dtype = check_dtype("Streaming", "dtype", dtype)
        self._open, self._lock = np.ones(streams, bool), threading.RLock()
        # Shapes of chunks that are computed as they are.
        self._whole = {(streams, size, *self.features) for size in self.buckets}
        graph, state = flax_nnx.split(rnn)
        # A list, because flattening a nested state takes as long as a small layer.
        leaves, structure = jax.tree.flatten(state)
        # Copies, because a training step may donate the arrays of the layer.
        self._weights = [jnp.copy(leaf) for leaf in leaves]

        def run(weights, carry, xs, lengths):
            return flax_nnx.merge(graph, structure.unflatten(weights))(
                xs,
                initial_carry=carry,
                seq_lengths=lengths,
                return_carry=True,
                time_major=False,
                zero_padding=True,
                deterministic=True,
            )

        def fresh(weights):
            # With length 0, the last carry is the first one.
            xs = jnp.zeros((streams, 1, *self.features), self.dtype)
            return run(weights, None, xs, jnp.zeros(streams, jnp.int32))[0]

        # The carry is donated: its buffer is reused for the next one.
        self._run = jax.jit(run, donate_argnums=1)
        self._start = jax.jit(started)
        self._fresh = jax.jit(fresh)(self._weights)
        checks.state(rnn, self._fresh, (streams, *self.features), self.dtype)
        self.reset()

    @alone
    def __call__(self, chunk: Any) -> Any:
        """Process a chunk of every stream, or of some.

        Args:
            chunk: `[B, t, ...]`, the next t steps of every stream; or a dict from the
                number of a stream to `[t, ...]`, where each may have its own t.

        Returns:
            The outputs as read-only NumPy arrays: `[B, t, H]`, or a dict from stream to
            `[t, H]`; a tree of such arrays if the outputs of the cell are a tree.

        Raises:
            KeyError: for a stream that has not joined.
            RuntimeError: if an exception ended an earlier call while it computed.
            TypeError: for a key that is not an integer, or for numbers of a kind that
                `dtype` does not have: complex ones, or floats if it is an integer.
            ValueError: if a shape is wrong.
        """
        if isinstance(chunk, Mapping):
            return self._some(chunk)
        chunk = checks.array(chunk, self.dtype, "chunk")
        if chunk.shape not in self._whole and (
            chunk.ndim < 2
            or (len(chunk), *chunk.shape[2:]) != (self.streams, *self.features)
        ):
            want = f"({self.streams}, t, {', '.join(map(str, self.features))})"
            raise ValueError(
                f"Streaming: chunk has shape {chunk.shape}, want {want}, or a dict"
            )
        return self._feed(chunk, None)

    def _some(self, chunks):
        """Feed the streams that have a chunk."""
        arrays = {}
        for stream, chunk in chunks.items():
            checks.joined(stream, self._open)
            arrays[stream] = checks.chunk(chunk, self.dtype, self.features, stream)
        if self.streams == 1 and arrays:
            # No joint array: making one takes as long as a small step.
            ((stream, array),) = arrays.items()
            return {stream: each(lambda y: y[0], self._feed(array[None], None))}
        sizes = {stream: len(array) for stream, array in arrays.items()}
        steps = max(sizes.values(), default=0)
        joint = np.zeros((self.streams, steps, *self.features), self.dtype)
        for stream, array in arrays.items():
            joint[stream, : sizes[stream]] = array
        lengths = None
        if len(sizes) < self.streams or min(sizes.values()) < steps:
            lengths = np.zeros(self.streams, np.int32)
            lengths[list(sizes)] = list(sizes.values())
        ys = self._feed(joint, lengths)
        places = {stream: (stream, slice(size)) for stream, size in sizes.items()}
        return {k: each(operator.itemgetter(place), ys) for k, place in places.items()}

    def _feed(self, xs, lengths):
        """The outputs; lengths None if all steps count."""
        before = checks.known(self._carry)
        try:
            return self._pieces(xs, lengths)
        except BaseException:
            if self._carry is not before or checks.is_donated(before):
                self._carry = None  # or they would be those after a lost chunk
            raise

    def _pieces(self, xs, lengths):
        """The outputs, in pieces that fit a bucket."""
        if xs.shape in self._whole:
            return self._advance(xs, lengths)
        outs, largest = [], self.buckets[-1]
        for start in range(0, max(xs.shape[1], 1), largest):
            piece = xs[:, start : start + largest]
            steps = piece.shape[1]
            if lengths is None:
                counted = np.full(self.streams, steps, np.int32)
            else:
                counted = np.minimum(np.maximum(lengths - start, 0), steps)
            outs.append(self._fill(piece, counted))
        if len(outs) == 1:
            return outs[0]
        return jax.tree.map(as_one, *outs)

    def _fill(self, piece, lengths):
        """The outputs of a piece, which is padded to its bucket."""
        steps = piece.shape[1]
        size = next(bucket for bucket in self.buckets if bucket >= steps)
        # If every step counts, the program needs no lengths.
        if lengths.min() == size:
            return self._advance(piece, None)
        whole = np.zeros((self.streams, size, *self.features), self.dtype)
        whole[:, :steps] = piece
        return each(lambda y: y[:, :steps], self._advance(whole, lengths))

    def _advance(self, xs, lengths):
        """Run one bucket: keep the new carries, return the outputs."""
        self._carry, ys = self._run(self._weights, self._carry, xs, lengths)
        return each(np.asarray, ys)

    @alone
    def join(self) -> int:
        """Take a free place for a new stream, with a fresh carry.

        Returns:
            The number of the place.

        Raises:
            ValueError: if all places are taken.
        """
        if self._open.all():
            raise ValueError(
                f"Streaming: all {self.streams} places are taken; call leave(stream) "
                "for one that has ended, or make more with streams="
            )
        stream = int(np.argmin(self._open))
        self._begin(np.arange(self.streams) == stream)
        self._open[stream] = True
        return stream

    @alone
    def leave(self, stream: SupportsIndex) -> None:
        """Free the place of a stream.

        Args:
            stream: number of the place.

        Raises:
            KeyError: if no stream has joined there.
        """
        checks.joined(stream, self._open)
        self._open[stream] = False

    @alone
    def reset(
        self, streams: SupportsIndex | Iterable[SupportsIndex] | None = None
    ) -> None:
        """Give streams a fresh carry.

        Args:
            streams: one number or several; None for all streams.

        Raises:
            KeyError: for a stream that has not joined.
            TypeError: for a number that is not an integer.
        """
        if streams is None:
            # A copy, because the carry is donated to the next call.
            self._carry = jax.tree.map(jnp.copy, self._fresh)
            return
        starts = np.zeros(self.streams, bool)
        for stream in checks.several(streams):
            checks.joined(stream, self._open)
            starts[stream] = True
        self._begin(starts)

    def _begin(self, starts):
        """Give a fresh carry to each stream that starts."""
        self._carry = self._start(starts, self._fresh, checks.known(self._carry))

    @alone
    def state(self) -> dict[str, np.ndarray]:
        """Everything that is kept between calls, for `interop.save_safetensors`.

        Returns:
            Arrays by name: those of the carry, and `open`, bool `[B]`.
        """
        kept = named(checks.known(self._carry), self._open)
        return {k: np.array(a) for k, a in kept.items()}

    @alone
    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Args:
            state: what `state` returned, of this object or one with the same layer.

        Raises:
            TypeError: if `state` is no mapping.
            ValueError: if the arrays have other names, shapes or dtypes.
        """
        kept = named(self._fresh, self._open)
        arrays = checks.saved(state, kept)
        # Copies, because the carry is donated to the next call.
        leaves = [jnp.array(arrays[k]) for k in kept if k != "open"]
        self._carry = jax.tree.structure(self._fresh).unflatten(leaves)
        self._open = np.array(arrays["open"])
