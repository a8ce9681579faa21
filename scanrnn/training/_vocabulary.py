"""Tokens and their ids."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

# What stands for the end of a paragraph or a sentence.
END = "<eos>"

UNKNOWN = "<unk>"


class Vocabulary:
    """The tokens of a text, characters or words, and their ids.

    Args:
        tokens: The tokens in the order of their ids, which count from 0.

    Raises:
        ValueError: If there is no token, or a token occurs twice.

    Example:
        >>> from scanrnn.training import Vocabulary
        >>> vocabulary = Vocabulary.of("hello")
        >>> vocabulary.tokens
        ('e', 'h', 'l', 'o')
        >>> vocabulary.decode(vocabulary.encode("hole"))
        'hole'
        >>> Vocabulary.of(["to", "be", "to", "<unk>"], most=2).encode(["be", "to"])
        array([1, 0], dtype=int32)
    """

    def __init__(self, tokens: Iterable[str]):
        """Numbers the tokens."""
        self.tokens = tuple(tokens)
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        if not self.tokens:
            raise ValueError("tokens: got none, want at least one")
        if len(self._ids) < len(self.tokens):
            raise ValueError("tokens: got one of them twice, want different ones")

    @classmethod
    def of(cls, tokens: Iterable[str], most: int | None = None) -> "Vocabulary":
        """Makes the vocabulary of a text.

        Args:
            tokens: The text: a string for characters, or a sequence of words.
            most: How many tokens to keep: the most frequent ones, `<unk>`, which stands
                for all others, and `<eos>` if the text has it. None keeps all.

        Returns:
            The vocabulary. With `most` None, the tokens are in sorted order. Else the
            most frequent token comes first, and `<unk>` comes after all that occur.

        Raises:
            ValueError: If the text is empty and `most` is None.
        """
        counts = Counter(tokens)
        if most is None:
            return cls(sorted(counts))
        counts[UNKNOWN] = 0
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        marks = [token for token in (UNKNOWN, END) if token in counts][:most]
        words = [token for token in ranked if token not in marks]
        kept = {*marks, *words[: most - len(marks)]}
        return cls(token for token in ranked if token in kept)

    def __len__(self) -> int:
        """Returns the number of different tokens."""
        return len(self.tokens)

    @property
    def are_characters(self) -> bool:
        """Whether every token is one character. Words have spaces between them."""
        return all(len(token) == 1 for token in self.tokens)

    def encode(self, text: Sequence[str]) -> np.ndarray:
        """Turns tokens into ids.

        Args:
            text: Tokens. Unknown tokens become `<unk>` if it is in the vocabulary.

        Returns:
            Ids of shape `[len(text)]`, int32.

        Raises:
            ValueError: If neither a token nor `<unk>` is in the vocabulary.

        Example:
            >>> from scanrnn.training import Vocabulary
            >>> Vocabulary("abc").encode("cab").tolist()
            [2, 0, 1]
        """
        if UNKNOWN in self._ids:
            unknown = self._ids[UNKNOWN]
            return np.array([self._ids.get(token, unknown) for token in text], np.int32)
        missing = sorted(set(text) - set(self.tokens))
        if missing:
            raise ValueError(
                f"text: {''.join(missing)!r} is not in the vocabulary of "
                f"{len(self)} characters; leave it out or train on a text that has it"
            )
        return np.array([self._ids[token] for token in text], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Turns ids into text.

        Args:
            ids: Ids in `[0, len(vocabulary))`.

        Returns:
            The text. Words have spaces between them, characters have none.

        Example:
            >>> from scanrnn.training import Vocabulary
            >>> Vocabulary("abc").decode([1, 0])
            'ba'
            >>> Vocabulary(["to", "be"]).decode([0, 1])
            'to be'
        """
        return ("" if self.are_characters else " ").join(self.tokens[i] for i in ids)
