"""Deterministic iterators over batches, whose position can be saved and restored."""

import abc
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from scanrnn.training._batch_checks import (
    check_count,
    check_place,
    check_rows,
    check_seed,
    check_starts,
    is_below,
)


class Batches(Iterator[Any]):
    """An iterator over batches whose position can be saved and restored.

    `fit` and `resume` take their data in this form.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Arrays
        >>> batches = Arrays(np.arange(6), batch=2, seed=0)
        >>> _ = next(batches)
        >>> place = batches.state()
        >>> second = next(batches)
        >>> batches.restore(place)
        >>> bool((next(batches) == second).all())
        True
    """

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns the position of the next batch, as a dict that JSON can hold."""

    @abc.abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a saved position.

        Args:
            state: What `state` returned at that position.
        """


class Window(NamedTuple):
    """Consecutive tokens of all streams, for truncated backpropagation.

    Attributes:
        inputs: Ids `[T, B]`.
        targets: The id that follows each of them in the text, `[T, B]`.
        resets: Booleans `[T, B]`. Before a time step with True, the carry of the stream
            is reset. None for no resets.
    """

    inputs: Any
    targets: Any
    resets: Any = None


class Streams(Batches):
    """`B` endless streams of consecutive windows over one text.

    The text is read as a circle: after its end comes its start. Stream `b` starts at
    token `b * (N // B)`, and does not stop where the next stream started. So the carry
    of a stream stays valid across windows and epochs, and one number is the position of
    all streams.

    Args:
        ids: The text as ids, shape `[N]`.
        batch: Number of streams `B`.
        window: Length `T` of a window.
        starts: Booleans `[N]`: True where a document starts, which resets the carry.
            None for no resets.
        rows: Which columns of the windows this process reads, `(first, last + 1)`; None
            for all.
        parts: Number of parts of a window, for gradient accumulation. With more than
            one, the arrays of a window have the shape `[parts, T, B / parts]`, and a
            process reads its columns of each part.

    Raises:
        TypeError: If `ids` or `starts` is no array, such as a str or a list, or
            `starts` is not of booleans.
        ValueError: If `batch`, `window` or `parts` is no integer of at least 1, the
            text has fewer than `batch * (window + 1)` tokens, `starts` has another
            length, `rows` are not columns of the window, or `parts` does not divide
            their numbers.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Streams
        >>> streams = Streams(np.arange(10), batch=2, window=3)
        >>> inputs, targets, _ = next(streams)
        >>> inputs.T.tolist(), targets.T.tolist()
        ([[0, 1, 2], [5, 6, 7]], [[1, 2, 3], [6, 7, 8]])
        >>> next(streams).inputs.T.tolist(), streams.state()
        ([[3, 4, 5], [8, 9, 0]], {'position': 6})
    """

    def __init__(
        self,
        ids: np.ndarray,
        batch: int,
        window: int,
        *,
        starts: np.ndarray | None = None,
        rows: tuple[int, int] | None = None,
        parts: int = 1,
    ):
        """Checks the length of the text and the number of parts."""
        batch, window = check_count("batch", batch), check_count("window", window)
        parts = check_count("parts", parts)
        for name, array in (("ids", ids), ("starts", starts)):
            if array is not None and not hasattr(array, "ndim"):
                raise TypeError(
                    f"{name}: got a {type(array).__name__}, want an array [N]: "
                    f"np.asarray({name}) of a list; for the ids of a text, "
                    "Vocabulary.of(text).encode(text)"
                )
        least = batch * (window + 1)
        if len(ids) < least:
            raise ValueError(
                f"ids: got {len(ids)} tokens, want at least batch * "
                f"(window + 1) = {batch} * {window + 1} = {least}; give more text, or "
                "a smaller batch or window"
            )
        check_starts(starts, len(ids))
        first, last = check_rows(rows, batch)
        if first % parts or last % parts or batch % parts:
            raise ValueError(
                f"parts: got {parts}, want a divisor of the {batch} streams, and of "
                f"the bounds of rows={(first, last)}, as rows_of_process(mesh, batch, "
                "parts) gives them"
            )
        # Columns lie part by part, so stream b is in the same part for any processes.
        own = np.arange(first // parts, last // parts)
        columns = np.arange(parts)[:, None] * (batch // parts) + own
        self.ids, self.batch, self.window, self.parts = ids, batch, window, parts
        self._starts = starts
        self._firsts = columns.ravel() * (len(ids) // batch)
        self._position = 0

    def __next__(self) -> Window:
        """Returns the next window of all streams."""
        offsets = self._position + np.arange(self.window + 1)
        places = (self._firsts[None, :] + offsets[:, None]) % len(self.ids)
        self._position = (self._position + self.window) % len(self.ids)
        ids = self.ids[places]
        resets = None if self._starts is None else self._cut(self._starts[places[:-1]])
        return Window(self._cut(ids[:-1]), self._cut(ids[1:]), resets)

    def _cut(self, rows: np.ndarray) -> np.ndarray:
        if self.parts == 1:
            return rows
        cut = rows.reshape(self.window, self.parts, -1)
        return np.ascontiguousarray(cut.transpose(1, 0, 2))

    def state(self) -> dict[str, int]:
        """Returns how many tokens each stream has read, modulo `N`."""
        return {"position": self._position}

    def restore(self, state: dict[str, int]) -> None:
        """Goes to a saved position.

        Raises:
            ValueError: If it is not one of this text.
        """
        if not is_below(state.get("position"), len(self.ids)):
            raise ValueError(
                f"state: got {state}, want a position in the {len(self.ids)} tokens; "
                "give the text of the run that saved it"
            )
        self._position = operator.index(state["position"])


class Arrays(Batches):
    """Endless batches of examples from arrays, in a new order every epoch.

    Args:
        arrays: A pytree of arrays. The first axis of each is the axis of examples.
        batch: Examples per batch `B`. Examples that do not fill a batch at the end of
            an epoch are left out.
        seed: Seed of the orders; None to keep the order of the arrays.
        rows: Which examples of every batch this process gets, `(first, last + 1)`; None
            for all.

    Raises:
        TypeError: If an array is a number, or `seed` no integer.
        ValueError: If `batch` is no integer of at least 1, there are fewer examples,
            the arrays differ in their number, or `rows` are not examples of a batch.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Arrays
        >>> batches = Arrays((np.arange(5), np.ones([5, 7])), batch=2, seed=None)
        >>> numbers, ones = next(batches)
        >>> numbers.tolist(), ones.shape, batches.state()
        ([0, 1], (2, 7), {'epoch': 0, 'batch': 1, 'seed': None})
    """

    def __init__(
        self,
        arrays: Any,
        batch: int,
        *,
        seed: int | None = 0,
        rows: tuple[int, int] | None = None,
    ):
        """Checks the number of examples."""
        batch = check_count("batch", batch)
        leaves = jax.tree.leaves(arrays)
        if scalars := [leaf for leaf in leaves if not np.ndim(leaf)]:
            raise TypeError(
                f"arrays: got the number {scalars[0]!r}, want arrays [examples, ...]"
            )
        sizes = {len(leaf) for leaf in leaves}
        if len(sizes) != 1 or min(sizes) < batch:
            raise ValueError(
                f"arrays: got first axes of {sorted(sizes)}, want one size for all, of "
                f"at least batch={batch}"
            )
        self.arrays, self.batch, self._seed = arrays, batch, check_seed(seed)
        self._size, self._rows = sizes.pop(), slice(*check_rows(rows, batch))
        self._epoch = self._next = 0
        self._order: tuple[int, np.ndarray] | None = None

    def __next__(self) -> Any:
        """Returns the next batch."""
        if self._order is None or self._order[0] != self._epoch:
            self._order = self._epoch, self._shuffled(self._epoch)
        order = self._order[1]
        chosen = order[self._next * self.batch : (self._next + 1) * self.batch]
        self._next += 1
        if (self._next + 1) * self.batch > self._size:
            self._epoch, self._next = self._epoch + 1, 0
        return jax.tree.map(lambda leaf: leaf[chosen[self._rows]], self.arrays)

    def _shuffled(self, epoch):
        """Returns the order of the examples in an epoch."""
        order = np.arange(self._size)
        if self._seed is None:
            return order
        return np.random.default_rng((self._seed, epoch)).permutation(order)

    def state(self) -> dict[str, Any]:
        """Returns the position of the next batch, and the seed."""
        return {"epoch": self._epoch, "batch": self._next, "seed": self._seed}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a saved position.

        Raises:
            ValueError: If it is not one of these arrays, or of another seed.
        """
        size = self._size // self.batch
        self._epoch, self._next = check_place(state, size, self._seed, "arrays")
