"""A language model over characters or words."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import scanrnn.nnx as layers
from scanrnn import cells
from scanrnn.training._config import Config
from scanrnn.training._precision import Precision

_LAYERS = {
    "lstm": layers.LSTM,
    "gru": layers.GRU,
    "elman": layers.Elman,
    "mgu": layers.MGU,
    "ugrnn": layers.UGRNN,
}
# The kinds of dtypes that the layers of the model use.
_KINDS = {
    "embed": ("params", "compute"),
    "rnn": ("params", "compute", "carry"),
    "readout": ("params", "compute", "output"),
}


class LanguageModel(nnx.Module):
    """Embedding, stacked recurrent layers, and a readout.

    Args:
        symbols: Size `V` of the vocabulary.
        features: Width `H` of the embedding and of every layer.
        num_layers: Number of layers.
        cell: Name of the cell of all layers, such as "lstm".
        norm: Layer norm inside the cells and before the readout; None for none.
        residual: Whether to add the input of a layer to its output.
        dropout: Probability that a feature is set to zero in training, before, between
            and after the layers.
        uniform: Draw all weight matrices uniformly from `[-uniform, uniform]`, and set
            the forget bias of an LSTM to 0. None for the initializers of the layers.
        precision: The dtypes of parameters, products, carries and logits. Its layers
            are "embed", "rnn" and "readout". None for float32.
        implementation: The `implementation` of `scanrnn.scan` for the layers.
        rngs: Its `params` stream draws the initial parameters. The model does not keep
            it.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from scanrnn.training import LanguageModel
        >>> model = LanguageModel(30, 8, num_layers=1, rngs=nnx.Rngs(0))
        >>> carry, logits = model(jnp.zeros([5, 2], jnp.int32))
        >>> logits.shape
        (5, 2, 30)

    Reference:
        Zaremba, Sutskever, Vinyals, "Recurrent neural network regularization", 2014,
        arXiv:1409.2329. Ba, Kiros, Hinton, "Layer normalization", 2016,
        arXiv:1607.06450.
    """

    def __init__(
        self,
        symbols: int,
        features: int,
        *,
        num_layers: int,
        cell: str = "lstm",
        norm: str | None = "ba2016",
        residual: bool = True,
        dropout: float = 0.0,
        uniform: float | None = None,
        precision: Precision | None = None,
        implementation: str | None = None,
        rngs: nnx.Rngs,
    ):
        """Draws the parameters; see the class."""
        precision = precision or Precision()
        precision.check_layers(_KINDS)
        self.dropout = dropout
        self.output = precision.at("readout").output
        embed, readout = (_flax_options(precision, n) for n in ("embed", "readout"))
        rnn: dict[str, Any] = precision.layer_options("rnn")
        if uniform is not None:
            draw = _uniform(uniform)
            embed["embedding_init"] = readout["kernel_init"] = draw
            rnn |= {"kernel_init": draw, "recurrent_kernel_init": draw}
            if cell == "lstm":
                rnn["forget_bias"] = 0.0
        self.embed = nnx.Embed(symbols, features, **embed, rngs=rngs)
        self.rnn = _LAYERS[cell](
            features,
            features,
            num_layers=num_layers,
            norm=norm,
            residual=residual,
            dropout=dropout if num_layers > 1 else 0.0,
            time_major=True,
            return_carry=True,
            implementation=implementation,
            rngs=rngs,
            **rnn,
        )
        plain = norm is None
        options = {"param_dtype": precision.params, "rngs": rngs}
        self.norm = None if plain else nnx.LayerNorm(features, **options)
        self.readout = nnx.Linear(
            features,
            symbols,
            preferred_element_type=jnp.promote_types(self.output, jnp.float32),
            **readout,
            rngs=rngs,
        )

    def __call__(
        self,
        ids: jax.Array,
        carry: Any = None,
        *,
        seq_lengths: jax.Array | None = None,
        resets: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Any, jax.Array]:
        """Computes the logits of the token that follows each token.

        Args:
            ids: Ids of tokens, integers of shape `[T, B]`.
            carry: The carry before the first time step; None for zeros.
            seq_lengths: Length of each sequence, `[B]`; None if all are `T` long.
            resets: Booleans `[T, B]`. Before a time step with True, the carry of the
                stream is reset. None for no resets.
            key: PRNG key of dropout, for training; None for no dropout.

        Returns:
            The carry after the last time step, and logits of shape `[T, B, V]`.
        """
        xs, rngs = self.embed(ids), None
        if self.dropout and key is not None:
            keys = jax.random.split(key, 3)
            rngs = nnx.Rngs(dropout=keys[0])
            xs = self._drop(xs, keys[1])
        carry, ys = self.rnn(
            xs,
            initial_carry=carry,
            seq_lengths=seq_lengths,
            resets=resets,
            deterministic=rngs is None,
            rngs=rngs,
        )
        if rngs is not None:
            ys = self._drop(ys, keys[2])
        return carry, self.read(ys)

    def read(self, ys: jax.Array) -> jax.Array:
        """Computes logits from the outputs of the layers.

        Args:
            ys: Outputs of the last layer, `[T, B, H]`.

        Returns:
            Logits, `[T, B, V]`.
        """
        ys = ys if self.norm is None else self.norm(ys)
        return self.readout(ys).astype(self.output)

    def _drop(self, xs, key):
        kept = jax.random.bernoulli(key, 1 - self.dropout, xs.shape)
        return jnp.where(kept, xs / (1 - self.dropout), 0).astype(xs.dtype)


def make_model(
    config: Config, symbols: int, implementation: str | None = None
) -> LanguageModel:
    """Makes the model of a config; the seed of the config draws its parameters.

    Args:
        config: Options of the run.
        symbols: Size `V` of the vocabulary.
        implementation: The `implementation` of `scanrnn.scan` for the layers.

    Returns:
        The model.

    Example:
        >>> from scanrnn.training import Config, make_model
        >>> make_model(Config(features=8), symbols=30).readout.kernel.shape
        (8, 30)
    """
    return LanguageModel(
        symbols,
        config.features,
        num_layers=config.layers,
        cell=config.cell,
        norm=None if config.norm == "none" else config.norm,
        residual=config.residual,
        dropout=1 - config.keep,
        uniform=config.uniform or None,
        precision=Precision.parse(config.precision),
        implementation=implementation,
        rngs=nnx.Rngs(config.seed),
    )


def layers_of(model: LanguageModel) -> list[tuple[cells.Cell, Any]]:
    """Returns the cell of each layer, with its residual connection, and its weights."""
    residual = model.rnn.residual
    return [
        (cells.residual(cell) if residual else cell, weights)
        for ((cell, weights),) in model.rnn.stack
    ]


def zero_carry(model: LanguageModel, batch: int) -> Any:
    """Returns the carry with which all streams start.

    Args:
        model: The model.
        batch: Number of streams `B`.

    Returns:
        Zeros, with the structure, shapes and dtypes of the model's carry.

    Example:
        >>> from scanrnn.training import Config, make_model
        >>> model = make_model(Config(features=8), symbols=30)
        >>> zero_carry(model, batch=2)[0].h.shape
        (2, 8)
    """
    ids = jax.ShapeDtypeStruct((1, batch), jnp.int32)
    carry, _ = jax.eval_shape(lambda model, ids: model(ids), model, ids)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), carry)


def _flax_options(precision, layer):
    options = precision.layer_options(layer)
    del options["carry_dtype"]
    return options


def _uniform(scale):
    def draw(key, shape, dtype=jnp.float32, **ignored):
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    return draw
