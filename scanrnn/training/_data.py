"""Text, its vocabulary, and endless parallel streams over it."""

import dataclasses
import importlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def load_text(path: str = "") -> str:
    """Reads the text to train on.

    Args:
        path: A UTF-8 text file. Empty for the topics of Python's `help()`, about half
            a million characters of English that every Python carries; their text
            differs a little from one version of Python to the next.

    Returns:
        The text.

    Raises:
        ValueError: If the file is missing, is not UTF-8, or is empty.

    Example:
        >>> from scanrnn.training import load_text
        >>> len(load_text()) > 400_000
        True
    """
    if not path:
        topics = importlib.import_module("pydoc_data.topics").topics
        return "".join(topics[name] for name in sorted(topics))
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"text: cannot read {path!r} as UTF-8 text: {error}") from None
    if not text:
        raise ValueError(f"text: {path!r} is empty, want some text to train on")
    return text


class Vocabulary:
    """The characters of a text, numbered in sorted order.

    Args:
        symbols: The characters; duplicates and order do not matter.

    Raises:
        ValueError: If there is no character.

    Example:
        >>> from scanrnn.training import Vocabulary
        >>> vocabulary = Vocabulary("hello")
        >>> vocabulary.symbols
        'ehlo'
        >>> vocabulary.decode(vocabulary.encode("hole"))
        'hole'
    """

    def __init__(self, symbols: Iterable[str]):
        """Numbers the distinct characters."""
        self.symbols = "".join(sorted(set(symbols)))
        if not self.symbols:
            raise ValueError("symbols: got no character, want at least one")
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        """Returns the number of different characters."""
        return len(self.symbols)

    def encode(self, text: str) -> np.ndarray:
        """Turns characters into ids.

        Args:
            text: Any characters of the vocabulary.

        Returns:
            Ids of shape `[len(text)]`, int32.

        Raises:
            ValueError: If a character is not in the vocabulary.

        Example:
            >>> from scanrnn.training import Vocabulary
            >>> Vocabulary("abc").encode("cab").tolist()
            [2, 0, 1]
        """
        unknown = sorted(set(text) - set(self.symbols))
        if unknown:
            raise ValueError(
                f"text: {''.join(unknown)!r} is not in the vocabulary of "
                f"{len(self)} characters; leave it out or train on a text that has it"
            )
        return np.array([self._ids[symbol] for symbol in text], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Turns ids into characters.

        Args:
            ids: Ids in `[0, len(vocabulary))`.

        Returns:
            The text.

        Example:
            >>> from scanrnn.training import Vocabulary
            >>> Vocabulary("abc").decode([1, 0])
            'ba'
        """
        return "".join(self.symbols[i] for i in ids)


@dataclasses.dataclass(frozen=True)
class Streams:
    """`B` endless streams of consecutive windows over one text.

    The text is a circle, and stream `b` starts at `b / B` of it: a stream that reaches
    the start of the next one reads on. So a carry is good for ever, and where a run
    stands is one number, the position.

    Args:
        ids: The text as ids, shape `[N]`.
        batch: Number of streams `B`.
        window: Length `T` of a window.

    Raises:
        ValueError: If the text is too short to give each stream a window of its own.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import Streams
        >>> streams = Streams(np.arange(10), batch=2, window=3)
        >>> inputs, targets = streams.at(0)
        >>> inputs.T.tolist(), targets.T.tolist()
        ([[0, 1, 2], [5, 6, 7]], [[1, 2, 3], [6, 7, 8]])
        >>> streams.at(streams.after(0))[0].T.tolist()
        [[3, 4, 5], [8, 9, 0]]
    """

    ids: np.ndarray
    batch: int
    window: int

    def __post_init__(self) -> None:
        """Checks that the text is long enough."""
        least = self.batch * (self.window + 1)
        if len(self.ids) < least:
            raise ValueError(
                f"text: got {len(self.ids)} characters to read, want at least batch * "
                f"(window + 1) = {self.batch} * {self.window + 1} = {least}; give more "
                "text, or a smaller batch or window"
            )

    def at(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the window at a position of all streams.

        Args:
            position: Characters read so far by each stream.

        Returns:
            Inputs and targets, each of shape `[T, B]`; targets are one character ahead.

        Example:
            >>> import numpy as np
            >>> from scanrnn.training import Streams
            >>> Streams(np.arange(10), batch=1, window=2).at(4)[1].tolist()
            [[5], [6]]
        """
        size = len(self.ids)
        starts = np.arange(self.batch) * (size // self.batch)
        offsets = position + np.arange(self.window + 1)
        ids = self.ids[(starts[None, :] + offsets[:, None]) % size]
        return ids[:-1], ids[1:]

    def after(self, position: int) -> int:
        """Returns the position that follows the window at a position.

        Args:
            position: Characters read so far by each stream.

        Returns:
            Characters read after one more window, modulo the length of the text.

        Example:
            >>> import numpy as np
            >>> from scanrnn.training import Streams
            >>> Streams(np.arange(10), batch=2, window=4).after(8)
            2
        """
        return (position + self.window) % len(self.ids)
