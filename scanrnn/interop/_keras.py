"""Weights of Keras: `SimpleRNN`, `LSTM`, `GRU`, `ConvLSTM` and `Bidirectional`."""

from collections.abc import Sequence
from typing import Any

from scanrnn import cells
from scanrnn.interop import _arrays, _kinds, _options, _trees
from scanrnn.interop._weights import Weights, with_zero_biases

_KINDS = ("elman", "elman-relu", "lstm", "gru", "gru-cho2014", "conv_lstm")
_GRU = "zrn"  # Keras's order of our gates r, z and n


@_arrays.reader
def from_keras(
    source: Any, *, activation: str | None = None, reset_after: bool | None = None
) -> Weights:
    """Convert the weights of recurrent layers of Keras.

    The shapes tell which cell it is. A GRU whose bias is `[2, 3H]` has
    `reset_after=True`. Other options are read from a layer object; arrays alone do not
    contain them.

    Args:
        source: a layer, or the result of its `get_weights()`; or a list of layers, the
            lowest first. A `Bidirectional` has the arrays of both directions.
        activation: "tanh" or "relu", needed for the arrays of a `SimpleRNN`.
        reset_after: needed for the arrays of a `GRU` without biases.

    Returns:
        The weights. Missing biases become zeros.

    Raises:
        ValueError: if the arrays are not those of such a layer, or if a layer has an
            option that our cell does not have, such as another activation, or
            `go_backwards` (use `Weights.layer(reverse=True)`).

    Example:
        >>> import numpy as np, scanrnn
        >>> arrays = [np.ones([3, 15]), np.ones([5, 15]), np.ones([2, 15])]
        >>> scanrnn.interop.from_keras(arrays).layers[0][0]["recurrent_bias"].shape
        (5,)
    """
    many = isinstance(source, Sequence) and not _is_arrays(source)
    said: dict[str, set] = {"activation": set(), "reset_after": {reset_after} - {None}}
    layers = [_arrays_of(layer, said) for layer in (source if many else [source])]
    read = [[_ours(one, said["reset_after"]) for one in ones] for ones in layers]
    kind = _trees.one_kind(read, lambda one: one[0], "from_keras")
    kind = _options.activation("from_keras", kind, activation, said["activation"])
    if kind == "conv_lstm":
        cell = cells.conv_lstm(kernel_size=read[0][0][1]["kernel"].shape[:-2])
    else:
        cell = _kinds.KINDS[kind][0]
    return Weights(cell, [[params for _, params in ones] for ones in read])


def _is_arrays(source):
    return len(source) > 0 and hasattr(source[0], "shape")


def _arrays_of(layer, said):
    """The arrays of each direction of a layer; its options are added to `said`."""
    if hasattr(layer, "get_weights"):
        _read(layer, said)
        layer = layer.get_weights()
    if len(layer) in (4, 6):  # two directions, without and with biases
        half = len(layer) // 2
        return [layer[:half], layer[half:]]
    if len(layer) not in (2, 3):
        raise ValueError(
            f"from_keras: a layer has {len(layer)} arrays, want kernel, recurrent "
            "kernel and bias, or those of two directions; one that is not built yet "
            "has none"
        )
    return [layer]


def _read(layer, said):
    """Check the options of a layer, or of both layers in a `Bidirectional`."""
    if hasattr(layer, "forward_layer"):
        _options.KERAS.read("from_keras", layer)
        _read(layer.forward_layer, said)
        layer = layer.backward_layer
        options = _options.KERAS.read("from_keras", layer, go_backwards=True)
    else:
        options = _options.KERAS.read("from_keras", layer)
    said["activation"].add(options["activation"])
    if hasattr(layer, "reset_after"):
        said["reset_after"].add(layer.reset_after)


def _ours(arrays, reset_after):
    """The kind of a cell, and its arrays by our names."""
    names: list[str] = ["kernel", "recurrent_kernel", "bias"]
    arrays = dict(zip(names, arrays, strict=False))
    given = {
        name: _arrays.array(value, f"from_keras: {name}").shape
        for name, value in arrays.items()
    }
    *spatial, size, width = (0, 0, *given["recurrent_kernel"])
    kind = {1: "elman", 3: "gru", 4: "lstm"}.get(width / size if size else 0)
    if kind is None:
        raise ValueError(
            f"from_keras: recurrent_kernel has shape {given['recurrent_kernel']}, want "
            "[..., H, G * H] of G = 1 (SimpleRNN), 3 (GRU) or 4 gates (LSTM)"
        )
    if kind == "lstm" and spatial[2:]:
        kind = "conv_lstm"
    gates = f"{width // size}H"
    axes = {"recurrent_kernel": f"H {gates}", "kernel": f"D {gates}", "bias": gates}
    if kind == "conv_lstm":
        axes |= {name: f"... {axes[name]}" for name in ("recurrent_kernel", "kernel")}
    if kind == "gru" and _is_after(given.get("bias"), reset_after):
        kind, axes["bias"] = "gru-after", f"2 {gates}"
    ours = _arrays.fit("from_keras", arrays, axes, optional=["bias"])
    return _gates_of(kind, ours)


def _is_after(bias, said):
    """Whether a GRU resets after the product: its bias or `said` tells."""
    told = said if bias is None else {len(bias) == 2}
    if len(told) != 1 or not said <= told:
        raise ValueError(
            f"from_keras: a GRU's bias has shape {bias}, and reset_after is said to be "
            f"{sorted(said) or None}; [2, 3H] is with reset_after, [3H] without, and "
            "one without biases does not tell: say reset_after=True (Keras's default) "
            "or False"
        )
    return True in told


def _gates_of(kind, arrays):
    """The kind of our cell, and its arrays with the gates in our order."""
    kernel = arrays["kernel"]
    ours = {"bias": _arrays.zeros(kernel)} | arrays
    if not kind.startswith("gru"):
        return kind, ours
    ours = {k: _arrays.reordered(v, _GRU, "rzn") for k, v in ours.items()}
    if kind == "gru":
        return "gru-cho2014", ours
    size = kernel.shape[-1] // 3
    zeros = _arrays.zeros(kernel, size)
    ours["recurrent_bias"] = zeros
    if "bias" in arrays:
        first, second = ours["bias"]
        ours["recurrent_bias"] = second[2 * size :]
        ours["bias"] = first + _arrays.join([second[: 2 * size], zeros])
    return "gru", ours


def to_keras(weights: Weights) -> list[list[Any]]:
    """Convert weights to the arrays of layers of Keras.

    Args:
        weights: weights of a cell that Keras has. Our GRU "cudnn" is Keras's default,
            and "cho2014" is Keras's GRU with `reset_after=False`.

    Returns:
        For each layer the list of arrays that its `set_weights` takes. With two
        directions, `set_weights` of a `Bidirectional` takes the list.

    Raises:
        TypeError: for anything else than `Weights`, such as a layer.
        ValueError: if Keras has no such cell.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> arrays, = scanrnn.interop.to_keras(scanrnn.interop.Weights.of(gru))
        >>> [a.shape for a in arrays]
        [(3, 15), (5, 15), (2, 15)]
    """
    weights = with_zero_biases("to_keras", weights)
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
