"""Weights of cuDNN: the flat vector of `jax.experimental.rnn`."""

import math
from typing import Any

from scanrnn.interop import _arrays, _kinds
from scanrnn.interop._weights import Weights, with_zero_biases


@_arrays.reader
def from_cudnn(
    flat: Any,
    in_features: int,
    hidden_features: int,
    num_layers: int = 1,
    bidirectional: bool = False,
) -> Weights:
    """Convert the weights of `jax.experimental.rnn.lstm`.

    Args:
        flat: the vector that `jax.experimental.rnn.init_lstm_weight` returns.
        in_features: D, the size of an input.
        hidden_features: H, the size of the carry.
        num_layers: L, the number of layers.
        bidirectional: whether each layer has two directions.

    Returns:
        The weights. The sum of the two biases becomes our one bias.

    Raises:
        ValueError: if the vector does not have the length that these sizes need, or is
            not of floating-point numbers.

    Example:
        >>> import jax, scanrnn
        >>> from jax.experimental import rnn
        >>> flat = rnn.init_lstm_weight(jax.random.key(0), 3, 5, 2, True)
        >>> scanrnn.interop.from_cudnn(flat, 3, 5, 2, True).num_layers
        2
    """
    flat = _arrays.array(flat, "from_cudnn: the vector")
    directions = 2 if bidirectional else 1
    shapes = []
    for layer in range(num_layers):
        below = directions * hidden_features if layer else in_features
        for _ in range(directions):
            shapes += [(4 * hidden_features, below)]
            shapes += [(4 * hidden_features, hidden_features)]
    count = len(shapes) // 2
    shapes += [(4 * hidden_features,)] * (2 * count)
    total = sum(math.prod(shape) for shape in shapes)
    if flat.shape != (total,):
        raise ValueError(
            f"from_cudnn: the weights have shape {flat.shape}, want ({total},) for "
            f"in_features={in_features}, hidden_features={hidden_features}, "
            f"num_layers={num_layers}, bidirectional={bidirectional}"
        )
    arrays, start = [], 0
    for shape in shapes:
        arrays.append(flat[start : start + math.prod(shape)].reshape(shape))
        start += math.prod(shape)
    ones = [
        {
            "kernel": arrays[2 * k].T,
            "recurrent_kernel": arrays[2 * k + 1].T,
            "bias": arrays[2 * (count + k)] + arrays[2 * (count + k) + 1],
        }
        for k in range(count)
    ]
    layers = [ones[k : k + directions] for k in range(0, count, directions)]
    return Weights(_kinds.KINDS["lstm"][0], layers)


def to_cudnn(weights: Weights) -> Any:
    """Convert weights to the vector that `jax.experimental.rnn.lstm` takes.

    Args:
        weights: weights of an LSTM.

    Returns:
        The vector. The second biases are zero.

    Raises:
        TypeError: for anything else than `Weights`, such as a layer.
        ValueError: if the cell is not a plain LSTM.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> lstm = scanrnn.nnx.LSTM(3, 5, rngs=nnx.Rngs(0))
        >>> scanrnn.interop.to_cudnn(scanrnn.interop.Weights.of(lstm)).shape
        (200,)
    """
    weights = with_zero_biases("to_cudnn", weights)
    _kinds.check(weights, "cudnn", ("lstm",))
    ones = [params for directions in weights.layers for params in directions]
    parts = []
    for params in ones:
        parts += [params["kernel"].T, params["recurrent_kernel"].T]
    for params in ones:
        parts += [params["bias"], _arrays.zeros(params["bias"])]
    return _arrays.join([part.reshape(-1) for part in parts])
