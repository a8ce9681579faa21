"""Text written by a trained model."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from scanrnn.training._checkpoints import Checkpoints
from scanrnn.training._config import Config, check_temperature
from scanrnn.training._model import LanguageModel, make_model, zero_carry
from scanrnn.training._run import make_training
from scanrnn.training._same_run import check_notes
from scanrnn.training._text import END, split_words
from scanrnn.training._vocabulary import Vocabulary


def load_model(
    out: str | Path, *, precision: str = "float32"
) -> tuple[LanguageModel, Vocabulary]:
    """Reads the trained model of a run, which may still be training.

    Args:
        out: Folder of the run.
        precision: The dtypes of the model, as `Precision.parse` reads them. Half
            precision is meant for training. In float32, other programs compute exactly
            the same text.

    Returns:
        The model with the parameters of its newest checkpoint, and its vocabulary.

    Raises:
        ValueError: If there is no run, its checkpoint cannot be read, or `fit` saved it
            for another program.

    Example:
        >>> from scanrnn.training import load_model
        >>> load_model("/nowhere")
        Traceback (most recent call last):
            ...
        ValueError: out: '/nowhere' holds no run; train one first
    """
    folder = Path(out) / "checkpoint"
    if not out or not folder.is_dir():
        raise ValueError(f"out: {str(out)!r} holds no run; train one first")

    def like(notes):
        check_notes(notes, folder)
        config = Config.from_mapping(notes["config"])
        trained = make_model(config, len(notes["vocabulary"]))
        return make_training(config, trained)[0]

    with Checkpoints(folder) as checkpoints:
        notes, state = checkpoints.load(like)
    config = Config.from_mapping(notes["config"])
    vocabulary = Vocabulary(notes["vocabulary"])
    model = make_model(
        dataclasses.replace(config, precision=precision), len(vocabulary)
    )
    nnx.update(model, state.params)
    return model, vocabulary


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    length: int,
    *,
    prompt: str = "",
    temperature: float = 0.7,
    key: jax.Array,
) -> Iterator[str]:
    """Writes text, one token at a time. Only the carry is kept between tokens.

    Args:
        model: The model. Its logits have the size of the vocabulary.
        vocabulary: The tokens.
        length: How many tokens to write after the prompt.
        prompt: Text to continue. If it is empty, the text starts after the end of a
            line or paragraph, or after the first token of the vocabulary if it has
            neither.
        temperature: The logits are divided by this number. Below 1, likely tokens
            become more likely. With 0, the likeliest token is taken.
        key: PRNG key of the draws.

    Returns:
        An iterator over the tokens after the prompt. A word has a space before it, and
        the end of a paragraph is a newline.

    Raises:
        ValueError: If the prompt has a character that is not in the vocabulary, the
            length is negative, or the temperature is below 0.001
            and not 0.

    Example:
        >>> import jax
        >>> from scanrnn.training import Config, Vocabulary, generate, make_model
        >>> vocabulary = Vocabulary("abc")
        >>> model = make_model(Config(features=8), symbols=3)
        >>> len("".join(generate(model, vocabulary, 20, key=jax.random.key(0))))
        20
    """
    check_temperature(temperature)
    if length < 0:
        raise ValueError(f"length: got {length}, want at least 0")
    start = next((t for t in ("\n", END) if t in vocabulary.tokens), None)
    start = [start or vocabulary.tokens[0]]
    if not vocabulary.are_characters:
        given = _words(prompt, vocabulary)
    else:
        given = list(prompt)
    ids = vocabulary.encode(given or start)
    # The generator is `_write`, so the checks above run now, not at the first token.
    return _write(model, vocabulary, length, ids, temperature, key)


def _words(prompt: str, vocabulary: Vocabulary) -> list[str]:
    """The words of a prompt, split as those of the text: PTB's words have spaces."""
    ways = split_words(prompt), prompt.split()
    known = {*vocabulary.tokens}
    fewest = min(ways, key=lambda words: sum(word not in known for word in words))
    return [word for word in fewest if word != END]


def _write(
    model: LanguageModel,
    vocabulary: Vocabulary,
    length: int,
    ids: np.ndarray,
    temperature: float,
    key: jax.Array,
) -> Iterator[str]:
    """Reads the ids, then yields one token after the other."""
    graphdef, params = nnx.split(model)

    @jax.jit
    def write(params, carry, symbol, key):
        carry, logits = nnx.merge(graphdef, params)(symbol[None, None], carry)
        logits = logits[0, 0].astype(jnp.float32)
        if temperature == 0:
            return carry, jnp.argmax(logits)
        return carry, jax.random.categorical(key, logits / temperature)

    carry, symbol = zero_carry(model, batch=1), ids[-1]
    for read in ids[:-1]:
        carry, _ = write(params, carry, jnp.int32(read), key)
    for number in range(length):
        draw = jax.random.fold_in(key, number)
        carry, symbol = write(params, carry, jnp.int32(symbol), draw)
        token = vocabulary.tokens[int(symbol)]
        if not vocabulary.are_characters:
            token = "\n" if token == END else " " + token
        yield token
