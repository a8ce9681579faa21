"""Corpora: text that comes with Python, text files, and folders in PTB's format."""

import ast
import functools
import gc
import importlib
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scanrnn.training._vocabulary import END, UNKNOWN, Vocabulary

_PTB = ("ptb.train.txt", "ptb.valid.txt")
# Words, numbers and single marks, as in PTB. The text is in lower case.
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+|[^\w\s]|_")


class Corpus(NamedTuple):
    """Text to train on and text to evaluate on, as ids.

    Attributes:
        train: Ids to train on, `[N]`, int32.
        held_out: Ids to evaluate on, `[M]`, int32.
        vocabulary: What the ids mean.
    """

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: Vocabulary


def load_text(path: str = "") -> str:
    """Reads a text.

    Args:
        path: A UTF-8 text file. Empty for the topics of Python's `help()`: about half
            a million characters of English. They differ a little from one version of
            Python to the next.

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
        # Without the mark that some editors write before the text.
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        way = "check the path" if isinstance(error, OSError) else "save it as UTF-8"
        raise ValueError(f"text: cannot read {path!r}: {error}; {way}") from None
    if not text:
        raise ValueError(f"text: {path!r} is empty, want some text to train on")
    return text


@functools.cache
def load_docstrings() -> tuple[str, ...]:
    """Reads the docstrings of Python's standard library as words.

    Returns:
        About 400,000 words and marks, 9,000 of them different. `<eos>` ends a
        paragraph. The words differ from one version of Python to the next.

    Example:
        >>> from scanrnn.training import load_docstrings
        >>> len(load_docstrings()) > 300_000
        True
    """
    words: list[str] = []
    folder = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idlelib", "__pycache__"}
    # To look for cycles in millions of nodes takes longer than to parse them.
    collects = gc.isenabled()
    gc.disable()
    try:
        for path in sorted(folder.rglob("*.py")):
            if skipped.isdisjoint(path.relative_to(folder).parts):
                for text in _docstrings(path):
                    words += split_words(text)
    finally:
        if collects:
            gc.enable()
    return tuple(words)


def _docstrings(path):
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # some files have errors on purpose
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def split_words(text: str) -> list[str]:
    """Splits a text into words.

    Args:
        text: Text. Empty lines separate its paragraphs.

    Returns:
        Words and marks in lower case, and `<eos>` after every paragraph.

    Example:
        >>> split_words("It's 42.")
        ["it's", '42', '.', '<eos>']
    """
    words: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.lower()):
        if found := _WORD.findall(paragraph):
            words += [*found, END]
    return words


def load_corpus(
    path: str = "",
    tokens: str = "characters",
    held_out: float = 0.1,
    most: int | None = None,
) -> Corpus:
    """Reads a corpus.

    Args:
        path: A UTF-8 text file, or a folder with `ptb.train.txt` and `ptb.valid.txt`.
            Empty for text that comes with Python: the topics of its `help()` as
            characters, or the docstrings of its library as words.
        tokens: "characters" or "words". A PTB folder always has words.
        held_out: Share of the text, at its end, to evaluate on. A PTB folder has a
            file for evaluation instead.
        most: How many words to keep; None for all. Characters are all kept.

    Returns:
        The corpus.

    Raises:
        ValueError: If the text cannot be read.

    Example:
        >>> from scanrnn.training import load_corpus
        >>> len(load_corpus().vocabulary) > 50
        True
    """
    if path and Path(path).is_dir():
        return _load_ptb(Path(path), most)
    text: Sequence[str]
    if tokens == "words":
        text = split_words(load_text(path)) if path else load_docstrings()
        vocabulary = Vocabulary.of(text, most or len(set(text)) + 1)
    else:
        text = load_text(path)
        vocabulary = Vocabulary.of(text)
    ids = vocabulary.encode(text)
    split = len(ids) - round(held_out * len(ids))
    return Corpus(ids[:split], ids[split:], vocabulary)


def _load_ptb(folder, most):
    for name in _PTB:
        if not (folder / name).is_file():
            raise ValueError(
                f"text: {str(folder)!r} has no {name}, want a text file or a folder "
                f"with {' and '.join(_PTB)}"
            )
    train, valid = (
        load_text(str(folder / name)).replace("\n", f" {END} ").split() for name in _PTB
    )
    vocabulary = Vocabulary.of(train, most or len({*train, UNKNOWN}))
    return Corpus(vocabulary.encode(train), vocabulary.encode(valid), vocabulary)


def split_sentences(ids: np.ndarray, end: int) -> list[np.ndarray]:
    """Cuts ids into sentences.

    Args:
        ids: Ids of shape `[N]`.
        end: The id that ends a sentence. It is kept at the end of the sentence.

    Returns:
        The sentences of at least two ids. Shorter ones are left out, and so are the ids
        after the last end.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import split_sentences
        >>> [s.tolist() for s in split_sentences(np.array([5, 6, 0, 0, 7, 0]), end=0)]
        [[5, 6, 0], [7, 0]]
    """
    parts = np.split(ids, np.flatnonzero(ids == end) + 1)[:-1]
    return [part for part in parts if len(part) > 1]


def sentences_of(ids: np.ndarray, corpus: Corpus, part: str) -> list[np.ndarray]:
    """Cuts a part of a corpus into sentences, of which there must be one.

    Args:
        ids: The ids of the part.
        corpus: The corpus.
        part: What the part is, for the message.

    Returns:
        The sentences.

    Raises:
        ValueError: If there is none.
    """
    found = split_sentences(ids, corpus.vocabulary.encode([END])[0])
    if not found:
        raise ValueError(
            f"text: the {part} has no end of a sentence of two words or more; a "
            "sentence ends at an empty line, or in a PTB folder at the end of a line: "
            "give a text with such lines, or take --batching streams"
        )
    return found
