"""Weights of Equinox: `LSTMCell` and `GRUCell`."""

from collections.abc import Mapping
from typing import Any

from scanrnn.interop import _arrays, _kinds, _options, _trees
from scanrnn.interop._weights import Weights, with_zero_biases

_KINDS = ("lstm", "gru")
_NAMES = ("weight_ih", "weight_hh", "bias", "bias_n")
# For each number of gates: the kind, and the axes of its arrays.
_GATES = {
    3: (
        "gru",
        {"weight_hh": "3H H", "weight_ih": "3H D", "bias": "3H", "bias_n": "H"},
    ),
    4: ("lstm", {"weight_hh": "4H H", "weight_ih": "4H D", "bias": "4H"}),
}


@_arrays.reader
def from_equinox(source: Any) -> Weights:
    """Convert the parameters of Equinox's recurrent cells.

    Args:
        source: an `eqx.nn.LSTMCell` or `GRUCell`, or a dict of its arrays; a pair of
            them (forward, backward); or a list of layers, the lowest layer first.

    Returns:
        The weights. Missing biases become zeros.

    Raises:
        ValueError: if an array is missing or unknown or has a wrong shape, if the cells
            are of different kinds, or for an object of another class.

    Example:
        >>> import numpy as np, scanrnn
        >>> cell = {"weight_ih": np.ones([20, 3]), "weight_hh": np.ones([20, 5])}
        >>> scanrnn.interop.from_equinox(cell).hidden_features
        5
    """
    layers = source if isinstance(source, list) else [source]
    pairs = [layer if isinstance(layer, tuple) else (layer,) for layer in layers]
    read = [[_ours(cell) for cell in pair] for pair in pairs]
    kind = _trees.one_kind(read, lambda one: one[0], "from_equinox")
    layers = [[params for _, params in pair] for pair in read]
    return Weights(_kinds.KINDS[kind][0], layers)


def _ours(cell):
    if not isinstance(cell, Mapping):
        _options.EQUINOX.read("from_equinox", cell)
        arrays = {name: getattr(cell, name, None) for name in _NAMES}
        cell = {name: value for name, value in arrays.items() if value is not None}
    shape = _arrays.array(cell.get("weight_hh"), "from_equinox: weight_hh").shape
    gates = shape[0] / shape[1] if len(shape) == 2 and shape[1] else 0
    if gates not in _GATES:
        raise ValueError(
            f"from_equinox: weight_hh has shape {shape}, want [3H, H] (GRUCell) or "
            "[4H, H] (LSTMCell)"
        )
    kind, axes = _GATES[gates]
    biases = [name for name in axes if name.startswith("bias")]
    optional = [] if set(biases) & set(cell) else biases
    cell = _arrays.fit("from_equinox", cell, axes, optional=optional)
    kernel = cell["weight_ih"].T
    ours = {"kernel": kernel, "recurrent_kernel": cell["weight_hh"].T}
    ours["bias"] = cell.get("bias", _arrays.zeros(kernel))
    if kind == "gru":
        ours["recurrent_bias"] = cell.get("bias_n", _arrays.zeros(kernel, shape[1]))
    return kind, ours


def to_equinox(weights: Weights) -> list[dict[str, Any]]:
    """Convert weights to the parameters of Equinox's recurrent cells.

    Args:
        weights: weights in one direction, of a cell that Equinox has.

    Returns:
        For each layer a dict of arrays by Equinox's names, to use with `eqx.tree_at`.

    Raises:
        TypeError: for anything else than `Weights`, such as a layer.
        ValueError: if Equinox has no such cell, or for two directions.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> cell, = scanrnn.interop.to_equinox(scanrnn.interop.Weights.of(gru))
        >>> cell["weight_hh"].shape, cell["bias_n"].shape
        ((15, 5), (5,))
    """
    weights = with_zero_biases("to_equinox", weights)
    _kinds.check(weights, "equinox", _KINDS)
    _kinds.one_direction(weights, "equinox")
    return [_theirs(params) for (params,) in weights.layers]


def _theirs(params):
    names = {
        "weight_ih": params["kernel"].T,
        "weight_hh": params["recurrent_kernel"].T,
        "bias": params["bias"],
    }
    if "recurrent_bias" in params:
        names["bias_n"] = params["recurrent_bias"]
    return names
