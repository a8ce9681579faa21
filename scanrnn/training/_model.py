"""A character language model: what it is, and how it writes."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from scanrnn.nnx import LSTM
from scanrnn.training._config import Config
from scanrnn.training._data import Vocabulary


class CharLM(nnx.Module):
    """Embedding, stacked layer-norm LSTMs with residual connections, and a readout.

    Args:
        symbols: Size `V` of the vocabulary.
        features: Width `H` of the embedding and of every layer.
        layers: Number of layers.
        dtype: Type of the operands of matrix products; parameters are float32.
        implementation: Which one of `scanrnn.scan` runs the layers; None chooses.
        rngs: Its `params` stream draws the initial parameters. It is not kept.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from scanrnn.training import CharLM
        >>> model = CharLM(30, 8, layers=1, rngs=nnx.Rngs(0))
        >>> carry, logits = model(jnp.zeros([5, 2], jnp.int32))
        >>> logits.shape
        (5, 2, 30)

    Reference:
        Ba, Kiros, Hinton, "Layer normalization", 2016, https://arxiv.org/abs/1607.06450
    """

    def __init__(
        self,
        symbols: int,
        features: int,
        *,
        layers: int,
        dtype: Any = jnp.float32,
        implementation: str | None = None,
        rngs: nnx.Rngs,
    ):
        """Draws the parameters; see the class."""
        self.embed = nnx.Embed(symbols, features, dtype=dtype, rngs=rngs)
        self.rnn = LSTM(
            features,
            features,
            num_layers=layers,
            norm="ba2016",
            residual=True,
            dtype=dtype,
            time_major=True,
            return_carry=True,
            implementation=implementation,
            rngs=rngs,
        )
        self.norm = nnx.LayerNorm(features, dtype=jnp.float32, rngs=rngs)
        self.readout = nnx.Linear(
            features,
            symbols,
            dtype=dtype,
            preferred_element_type=jnp.float32,
            rngs=rngs,
        )

    def __call__(self, ids: jax.Array, carry: Any = None) -> tuple[Any, jax.Array]:
        """Scores what follows every character.

        Args:
            ids: Characters, shape `[T, B]`, integer.
            carry: The carry before the first of them; None for zeros.

        Returns:
            The carry after the last, and float32 logits of shape `[T, B, V]`.
        """
        carry, features = self.rnn(self.embed(ids), initial_carry=carry)
        return carry, self.readout(self.norm(features)).astype(jnp.float32)


def make_model(
    config: Config, symbols: int, implementation: str | None = None
) -> CharLM:
    """Makes the model of a config, with the initial parameters of its seed.

    Args:
        config: Options of the run.
        symbols: Size of the vocabulary.
        implementation: Which one of `scanrnn.scan` runs the layers; None chooses.

    Returns:
        The model.

    Example:
        >>> from scanrnn.training import Config, make_model
        >>> make_model(Config(features=8), symbols=30).readout.kernel.shape
        (8, 30)
    """
    return CharLM(
        symbols,
        config.features,
        layers=config.layers,
        dtype=jnp.dtype(config.dtype),
        implementation=implementation,
        rngs=nnx.Rngs(config.seed),
    )


def generate(
    model: CharLM,
    vocabulary: Vocabulary,
    length: int,
    *,
    prompt: str = "",
    temperature: float = 0.7,
    key: jax.Array,
) -> Iterator[str]:
    """Writes text, one character at a time, keeping only the carry.

    Args:
        model: A model of the vocabulary's size.
        vocabulary: The characters.
        length: How many characters to write after the prompt.
        prompt: Text to go on from; empty starts on a new line.
        temperature: Divides the logits; below 1 is more cautious.
        key: PRNG key of the draws.

    Returns:
        The characters after the prompt, each written when it is asked for.

    Raises:
        ValueError: If the prompt has a character that is not in the vocabulary, the
            length is negative, or the temperature is not positive.

    Example:
        >>> import jax
        >>> from scanrnn.training import Config, Vocabulary, generate, make_model
        >>> vocabulary = Vocabulary("abc")
        >>> model = make_model(Config(features=8), symbols=3)
        >>> len("".join(generate(model, vocabulary, 20, key=jax.random.key(0))))
        20
    """
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}, want more than 0")
    if length < 0:
        raise ValueError(f"length: got {length}, want at least 0")
    start = "\n" if "\n" in vocabulary.symbols else vocabulary.symbols[0]
    ids = vocabulary.encode(prompt or start)
    # A generator of its own: the checks above are made now, not at the first character.
    return _write(model, vocabulary.symbols, length, ids, temperature, key)


def _write(
    model: CharLM,
    symbols: str,
    length: int,
    ids: np.ndarray,
    temperature: float,
    key: jax.Array,
) -> Iterator[str]:
    """Reads the ids, then yields one character after the other."""
    graphdef, params = nnx.split(model)

    @jax.jit
    def write(params, carry, symbol, key):
        carry, logits = nnx.merge(graphdef, params)(symbol[None, None], carry)
        return carry, jax.random.categorical(key, logits[0, 0] / temperature)

    carry, symbol = zero_carry(model, batch=1), ids[-1]
    for read in ids[:-1]:
        carry, _ = write(params, carry, jnp.int32(read), key)
    for number in range(length):
        draw = jax.random.fold_in(key, number)
        carry, symbol = write(params, carry, jnp.int32(symbol), draw)
        yield symbols[int(symbol)]


def zero_carry(model: CharLM, batch: int) -> Any:
    """Returns the carry with which every stream starts.

    Args:
        model: The model.
        batch: Number of streams `B`.

    Returns:
        Zeros in the form of the model's carry.

    Example:
        >>> from scanrnn.training import Config, make_model
        >>> model = make_model(Config(features=8), symbols=30)
        >>> zero_carry(model, batch=2)[0].h.shape
        (2, 8)
    """
    ids = jax.ShapeDtypeStruct((1, batch), jnp.int32)
    carry, _ = jax.eval_shape(lambda model, ids: model(ids), model, ids)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), carry)
