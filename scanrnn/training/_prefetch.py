"""Batches that are made ahead, in a thread, while a training step runs."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from scanrnn.training._batches import Batches


class Prefetch(Batches):
    """Makes the next batches in a thread while a training step runs.

    Args:
        batches: The iterator to read. Do not use it elsewhere afterwards.
        size: How many batches are made ahead.
        place: A function that the thread applies to each batch, for example to put it
            on devices.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Arrays, Prefetch
        >>> batches = Prefetch(Arrays(np.arange(6), batch=2, seed=None), size=2)
        >>> next(batches).tolist(), batches.state()
        ([0, 1], {'epoch': 0, 'batch': 1, 'seed': None})
    """

    def __init__(
        self,
        batches: Batches,
        *,
        size: int = 2,
        place: Callable[[Any], Any] = lambda batch: batch,
    ):
        """Makes no batch yet: the first `next` starts the thread."""
        self.source, self._size, self._place = batches, size, place
        # One thread, so that the batches stay in order.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: deque[Future] = deque()
        self._state = batches.state()

    def __next__(self) -> Any:
        """Returns the next batch; the thread makes another one."""
        while len(self._ahead) <= self._size:
            self._ahead.append(self._pool.submit(self._draw))
        batch, self._state = self._ahead.popleft().result()
        return batch

    def _draw(self):
        batch = next(self.source)
        return self._place(batch), self.source.state()

    def state(self) -> dict[str, Any]:
        """Returns the position of the batch that `next` will return."""
        return self._state

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a saved position.

        Raises:
            ValueError: If the source refuses it. Then the next batches stay the same.
        """
        for batch in self._ahead:
            # The thread must not draw meanwhile. What it draws, or its error, is left.
            batch.exception()
        self.source.restore(state)
        self._ahead.clear()
        self._state = self.source.state()
