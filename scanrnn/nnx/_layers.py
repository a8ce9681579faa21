"""Layers of one family of cells, by name."""

from typing import Any, Unpack

from scanrnn import cells
from scanrnn.nnx._rnn import RNN, LayerOptions


class LSTM(RNN):
    """Layers of LSTM cells.

    The equations and the options of the cell are those of `scanrnn.cells.lstm`, all
    else is `RNN`'s. Its carry is an `LSTMCarry(h, c)`, a tuple of one per layer where
    there are several.

    Args:
        in_features: D, the size of the last axis of the inputs.
        hidden_features: H, the size of the last axis of the outputs.
        norm: None or "ba2016".
        integration: "additive" or "multiplicative".
        forget_bias: what the bias of the forget gate starts at; None for 1.
        dtype: of the GEMM operands and of the outputs, such as `jnp.bfloat16`.
        **options: keyword arguments of `RNN`; `rngs` is needed.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: for an unknown option, or a size less than one.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> rnn = scanrnn.nnx.LSTM(3, 5, num_layers=2, norm="ba2016", residual=True,
        ...                        return_carry=True, rngs=nnx.Rngs(0))
        >>> carry, ys = rnn(jnp.ones([2, 7, 3]))
        >>> ys.shape, carry[1].c.shape
        ((2, 7, 5), (2, 5))
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        norm: str | None = None,
        integration: str = "additive",
        forget_bias: float | None = None,
        dtype: Any = None,
        **options: Unpack[LayerOptions],
    ):
        """Draw the weights; see the class."""
        cell = cells.lstm(
            norm=norm, integration=integration, forget_bias=forget_bias, dtype=dtype
        )
        super().__init__(cell, in_features, hidden_features, **options)


class GRU(RNN):
    """Layers of GRU cells, cuDNN's and PyTorch's kind.

    The equations and the options of the cell are those of `scanrnn.cells.gru`, all
    else is `RNN`'s. Its carry is a `GRUCarry(h)`, a tuple of one per layer where there
    are several.

    Args:
        in_features: D, the size of the last axis of the inputs.
        hidden_features: H, the size of the last axis of the outputs.
        norm: None or "ba2016".
        integration: "additive" or "multiplicative".
        dtype: of the GEMM operands and of the outputs, such as `jnp.bfloat16`.
        **options: keyword arguments of `RNN`; `rngs` is needed.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: for an unknown option, or a size less than one.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> rnn = scanrnn.nnx.GRU(3, 5, time_major=True, rngs=nnx.Rngs(0))
        >>> rnn(jnp.ones([7, 2, 3])).shape
        (7, 2, 5)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        norm: str | None = None,
        integration: str = "additive",
        dtype: Any = None,
        **options: Unpack[LayerOptions],
    ):
        """Draw the weights; see the class."""
        cell = cells.gru(norm=norm, integration=integration, dtype=dtype)
        super().__init__(cell, in_features, hidden_features, **options)


class Elman(RNN):
    """Layers of Elman cells, the simple recurrent network.

    The equations and the options of the cell are those of `scanrnn.cells.elman`, all
    else is `RNN`'s. Its carry is an `ElmanCarry(h)`, a tuple of one per layer where
    there are several.

    Args:
        in_features: D, the size of the last axis of the inputs.
        hidden_features: H, the size of the last axis of the outputs.
        activation: "tanh" or "relu".
        norm: None or "ba2016".
        integration: "additive" or "multiplicative".
        dtype: of the GEMM operands and of the outputs, such as `jnp.bfloat16`.
        **options: keyword arguments of `RNN`; `rngs` is needed.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: for an unknown option, or a size less than one.

    Example:
        >>> import jax.numpy as jnp, scanrnn
        >>> from flax import nnx
        >>> rnn = scanrnn.nnx.Elman(3, 5, reverse=True, rngs=nnx.Rngs(0))
        >>> rnn(jnp.ones([7, 3])).shape
        (7, 5)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        activation: str = "tanh",
        norm: str | None = None,
        integration: str = "additive",
        dtype: Any = None,
        **options: Unpack[LayerOptions],
    ):
        """Draw the weights; see the class."""
        cell = cells.elman(activation, norm=norm, integration=integration, dtype=dtype)
        super().__init__(cell, in_features, hidden_features, **options)
