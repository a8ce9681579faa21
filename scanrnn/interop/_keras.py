"""Keras: `SimpleRNN`, `LSTM`, `GRU` and `ConvLSTM`, and `Bidirectional` round them."""

from collections.abc import Sequence
from typing import Any

from scanrnn import cells
from scanrnn.interop import _arrays, _kinds
from scanrnn.interop._weights import Weights

_KINDS = ("elman", "elman-relu", "lstm", "gru", "gru-cho2014", "conv_lstm")
_GRU = "zrn"  # Keras's order of our gates r, z and n


@_arrays.reader
def from_keras(source: Any, *, activation: str | None = None) -> Weights:
    """Convert the weights of recurrent layers of Keras.

    Which cell it is, the shapes tell: a GRU with two rows of biases is one with
    `reset_after=True`.

    Args:
        source: a layer, or what its `get_weights()` gives; or a list of such, the
            layers of a stack from below. One of `Bidirectional` has the arrays of both
            directions.
        activation: "tanh" or "relu" of a `SimpleRNN`, which its weights do not tell.

    Returns:
        The weights; zeros for biases that there are not.

    Raises:
        ValueError: for arrays of no such layer, or a layer with activations that our
            cell has not.

    Example:
        >>> import numpy as np, scanrnn
        >>> arrays = [np.ones([3, 15]), np.ones([5, 15]), np.ones([2, 15])]
        >>> scanrnn.interop.from_keras(arrays).layers[0][0]["recurrent_bias"].shape
        (5,)
    """
    many = isinstance(source, Sequence) and not _is_arrays(source)
    layers = [_read(layer, activation) for layer in (source if many else [source])]
    kinds = {kind for kind, _ in layers}
    if len(kinds) != 1:
        raise ValueError(f"from_keras: the layers are {sorted(kinds)}, want one kind")
    kind, directions = layers[0]
    if kind == "conv_lstm":
        size = directions[0]["kernel"].shape[:-2]
        cell = cells.conv_lstm(kernel_size=size)
    else:
        cell = _kinds.KINDS[kind][0]
    return Weights(cell, [directions for _, directions in layers])


def _is_arrays(source):
    return len(source) > 0 and hasattr(source[0], "shape")


def _read(layer, activation):
    """The kind of one layer, and its directions by our names."""
    if hasattr(layer, "get_weights"):
        inner = getattr(layer, "forward_layer", layer)
        activation = activation or _activations(inner)
        layer = layer.get_weights()
    arrays = [_arrays.array(a) for a in layer]
    if len(arrays) in (4, 6):  # two directions, without and with biases
        half = len(arrays) // 2
        pairs = [_ours(arrays[:half], activation), _ours(arrays[half:], activation)]
    elif len(arrays) in (2, 3):
        pairs = [_ours(arrays, activation)]
    else:
        raise ValueError(
            f"from_keras: a layer has {len(arrays)} arrays, want kernel, recurrent "
            "kernel and bias, or those of two directions"
        )
    return pairs[0][0], [params for _, params in pairs]


def _activations(layer):
    """The activation of a layer, if the others are ours."""
    name = getattr(layer.activation, "__name__", None)
    recurrent = getattr(layer, "recurrent_activation", None)
    recurrent = getattr(recurrent, "__name__", "sigmoid")
    if recurrent != "sigmoid" or name not in ("tanh", "relu"):
        raise ValueError(
            f"from_keras: {type(layer).__name__} has activation={name!r} and "
            f"recurrent_activation={recurrent!r}; our cells have tanh (SimpleRNN relu, "
            "too) and sigmoid"
        )
    if name == "relu" and type(layer).__name__ != "SimpleRNN":
        raise ValueError(
            f"from_keras: {type(layer).__name__} has activation='relu', our cell tanh"
        )
    return name


def _ours(arrays, activation):
    kernel, recurrent, *bias = arrays
    size = recurrent.shape[-2]
    count = kernel.shape[-1] // size if size else 0
    if kernel.shape[-1:] != recurrent.shape[-1:] or count not in (1, 3, 4):
        raise ValueError(
            f"from_keras: kernel {kernel.shape} and recurrent kernel {recurrent.shape} "
            "are not of 1 (SimpleRNN), 3 (GRU) or 4 (LSTM) gates"
        )
    bias = bias[0] if bias else _arrays.zeros(kernel)
    ours = {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}
    if count == 4:
        return ("lstm" if kernel.ndim == 2 else "conv_lstm"), ours
    if count == 1:
        if activation not in ("tanh", "relu"):
            raise ValueError(
                f"from_keras: activation={activation!r}, want 'tanh' or 'relu': the "
                "weights of a SimpleRNN do not tell"
            )
        return "elman" + ("-relu" if activation == "relu" else ""), ours
    ours = {k: _arrays.reordered(v, _GRU, "rzn") for k, v in ours.items()}
    if bias.ndim == 1:
        return "gru-cho2014", ours
    first, second = ours["bias"]
    zeros = _arrays.zeros(first, size)
    ours["recurrent_bias"] = second[2 * size :]
    ours["bias"] = first + _arrays.join([second[: 2 * size], zeros])
    return "gru", ours


def to_keras(weights: Weights) -> list[list[Any]]:
    """Convert weights to the arrays of layers of Keras.

    Args:
        weights: of a cell that Keras has; of our GRUs "cudnn" is its default and
            "cho2014" the one with `reset_after=False`.

    Returns:
        For each layer what its `set_weights` takes, that of a `Bidirectional` if there
        are two directions.

    Raises:
        ValueError: if Keras has no such cell.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> arrays, = scanrnn.interop.to_keras(scanrnn.interop.Weights.of(gru))
        >>> [a.shape for a in arrays]
        [(3, 15), (5, 15), (2, 15)]
    """
    kind = _kinds.check(weights, "keras", _KINDS)
    return [
        [array for params in directions for array in _theirs(kind, params)]
        for directions in weights.layers
    ]


def _theirs(kind, params):
    arrays = [params[name] for name in ("kernel", "recurrent_kernel", "bias")]
    if not kind.startswith("gru"):
        return arrays
    kernel, recurrent, bias = (_arrays.reordered(a, "rzn", _GRU) for a in arrays)
    if kind == "gru":
        size = params["recurrent_bias"].shape[-1]
        two = _arrays.zeros(bias, 2 * size)
        second = _arrays.join([two, params["recurrent_bias"]])
        bias = _arrays.module(bias, second).stack([bias, second])
    return [kernel, recurrent, bias]
