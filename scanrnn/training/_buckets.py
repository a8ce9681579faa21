"""Batches of sentences of similar length, which need little padding."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scanrnn.training._batch_checks import check_count, check_place, check_seed
from scanrnn.training._batches import Batches


class Padded(NamedTuple):
    """Sequences of different lengths in one array.

    Attributes:
        ids: Ids, int32 `[T, B]`; zeros after the end of a sequence.
        lengths: Length of each sequence, int32 `[B]`; 0 for a missing sequence.
    """

    ids: Any
    lengths: Any


class Buckets(Batches):
    """Batches of sequences of similar length, padded to the longest of their bucket.

    The sequences are sorted by length and cut into buckets of about equal size. One
    program is compiled for each bucket. Every epoch has a new order of the sequences in
    each bucket, and a new order of the batches. The iterator is endless.

    Args:
        sequences: Arrays of ids, of shape `[length]` each.
        batch: Sequences per batch `B`. The last batch of a bucket is filled with
            sequences of length 0.
        buckets: Number of buckets; fewer if there are fewer batches.
        seed: Seed of the orders.

    Raises:
        TypeError: If `seed` is no integer.
        ValueError: If there is no sequence with an id in it, they are not integers, or
            `batch` or `buckets` is no integer of at least 1.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Buckets
        >>> sequences = [np.ones(n, np.int32) for n in (2, 9, 3, 10)]
        >>> Buckets(sequences, batch=2, buckets=1).waste
        0.4
        >>> batches = Buckets(sequences, batch=2, buckets=2)
        >>> sorted(next(batches).ids.shape for _ in range(2)), round(batches.waste, 3)
        ([(3, 2), (10, 2)], 0.077)
    """

    def __init__(
        self,
        sequences: Sequence[np.ndarray],
        batch: int,
        *,
        buckets: int = 8,
        seed: int = 0,
    ):
        """Sorts the sequences into buckets."""
        if not any(map(len, sequences)):
            found = f"{len(sequences)} empty ones" if len(sequences) else "none"
            raise ValueError(f"sequences: got {found}, want at least one with an id")
        batch, buckets = check_count("batch", batch), check_count("buckets", buckets)
        kinds = {np.asarray(s).dtype for s in sequences if len(s)}
        if not all(np.issubdtype(kind, np.integer) for kind in kinds):
            raise ValueError(
                f"sequences: got {', '.join(sorted(map(str, kinds)))}, want integer ids"
            )
        if seed is None:
            raise TypeError("seed: got None, want an integer: the batches are mixed")
        self._sequences, self.batch = sequences, batch
        self._seed = check_seed(seed)
        order = np.argsort([len(s) for s in sequences], kind="stable")
        # All buckets but the first hold whole batches. The first has the shortest
        # sequences, so a missing one costs least there.
        ends = np.arange(len(order), 0, -batch)[::-1]
        lasts = [part[-1] for part in np.array_split(ends, buckets) if len(part)]
        self._buckets = np.split(order, lasts[:-1])
        self._epoch = self._next = 0
        self._order: tuple[int, list[np.ndarray]] | None = None

    @property
    def waste(self) -> float:
        """Share of the time steps of an epoch that are padding, between 0 and 1."""
        steps = sum(
            -(-len(bucket) // self.batch) * self.batch * self._longest(bucket)
            for bucket in self._buckets
        )
        return 1.0 - self.tokens / steps

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(map(len, self._sequences))

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return sum(-(-len(bucket) // self.batch) for bucket in self._buckets)

    def __next__(self) -> Padded:
        """Returns the next batch."""
        if self._order is None or self._order[0] != self._epoch:
            self._order = self._epoch, self._shuffled(self._epoch)
        longest, *chosen = self._order[1][self._next]
        self._next += 1
        if self._next == len(self):
            self._epoch, self._next = self._epoch + 1, 0
        ids = np.zeros((longest, self.batch), np.int32)
        lengths = np.zeros(self.batch, np.int32)
        for row, index in enumerate(chosen):
            sequence = self._sequences[index]
            ids[: len(sequence), row], lengths[row] = sequence, len(sequence)
        return Padded(ids, lengths)

    def _shuffled(self, epoch):
        """Returns the batches of an epoch: the length of each, then its sequences."""
        rng = np.random.default_rng((self._seed, epoch))
        batches = []
        for bucket in self._buckets:
            mixed = rng.permutation(bucket)
            for start in range(0, len(mixed), self.batch):
                chosen = mixed[start : start + self.batch]
                batches.append([self._longest(bucket), *chosen])
        return [batches[i] for i in rng.permutation(len(batches))]

    def _longest(self, bucket):
        return len(self._sequences[bucket[-1]])

    def state(self) -> dict[str, Any]:
        """Returns the position of the next batch, and the seed."""
        return {"epoch": self._epoch, "batch": self._next, "seed": self._seed}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a saved position.

        Raises:
            ValueError: If it is not one of these sequences, or of another seed.
        """
        place = check_place(state, len(self), self._seed, "sequences")
        self._epoch, self._next = place
