"""Flax Linen: its cells, alone and in `nn.RNN` and `nn.Bidirectional`."""

from collections.abc import Mapping
from typing import Any

from scanrnn import cells
from scanrnn.interop import _arrays, _kinds, _trees
from scanrnn.interop._weights import Weights

_KINDS = ("elman", "elman-relu", "lstm", "gru", "mgu", "conv_lstm")
# Where a cell's biases are: on which side, besides that of the candidate's reset.
_BIAS_SIDE = {"lstm": "h", "gru": "i", "mgu": "i"}
_CONV = "igfo"  # the order of a ConvLSTMCell, whose f has one added


def _names(gates):
    return {f"{side}{gate}" for side in "ih" for gate in gates}


_BY_NAMES = {
    frozenset(_names("ifgo")): "lstm",
    frozenset(_names("rzn")): "gru",
    frozenset(_names("fn")): "mgu",
    frozenset({"i", "h"}): "elman",
    frozenset({"ih", "hh"}): "conv_lstm",
}


@_arrays.reader
def from_linen(params: Any, *, activation: str = "tanh") -> Weights:
    """Convert the parameters of Flax Linen's recurrent cells and layers.

    Which cell it is, the names tell: `LSTMCell` and `OptimizedLSTMCell` (which are
    alike), `GRUCell`, `MGUCell`, `SimpleCell` and `ConvLSTMCell`.

    Args:
        params: the tree of a cell, of an `nn.RNN` or `nn.Bidirectional`, a pair of
            trees (forward, backward), or a list of such, the layers from below.
        activation: that of a `SimpleCell`, "tanh" or "relu".

    Returns:
        The weights.

    Raises:
        ValueError: for a tree of no such cell.

    Example:
        >>> import flax.linen as nn, jax, jax.numpy as jnp, scanrnn
        >>> rnn = nn.RNN(nn.GRUCell(5))
        >>> variables = rnn.init(jax.random.key(0), jnp.ones([2, 7, 3]))
        >>> scanrnn.interop.from_linen(variables["params"]).layers[0][0]["kernel"].shape
        (3, 15)
    """
    layers = params if isinstance(params, list) else [params]
    read = [_trees.directions(tree, _is_cell, "from_linen") for tree in layers]
    kind = _trees.one_kind(read, _kind, "from_linen")
    if kind == "conv_lstm":
        cell = cells.conv_lstm(kernel_size=read[0][0]["ih"]["kernel"].shape[:-2])
    else:
        relu = kind == "elman" and activation == "relu"
        cell = _kinds.KINDS["elman-relu" if relu else kind][0]
    return Weights(cell, [[_ours(kind, one) for one in ones] for ones in read])


def _kind(tree):
    return _BY_NAMES[frozenset(tree)]


def _is_cell(tree: Mapping) -> bool:
    return frozenset(tree) in _BY_NAMES


def _ours(kind, cell):
    if kind == "conv_lstm":
        return _conv_ours(cell)
    gates = _kinds.gates(kind)
    if kind == "elman":
        cell = {"ih": cell["i"], "hh": cell["h"]}
    kernels = [[cell[f"{side}{g}"]["kernel"] for g in gates] for side in "ih"]
    size = kernels[1][0].shape[-1]
    side = _BIAS_SIDE.get(kind, "i")
    ours = {
        "kernel": _arrays.join(kernels[0]),
        "recurrent_kernel": _arrays.join(kernels[1]),
    }
    zeros = _arrays.zeros(kernels[1][0], size)
    ours["bias"] = _arrays.join([cell[f"{side}{g}"].get("bias", zeros) for g in gates])
    if kind in ("gru", "mgu"):
        ours["recurrent_bias"] = cell["hn"].get("bias", zeros)
    return ours


def _conv_ours(cell):
    kernel = cell["ih"]["kernel"]
    biases = [cell[side].get("bias", _arrays.zeros(kernel)) for side in ("ih", "hh")]
    return {
        "kernel": _arrays.reordered(kernel, _CONV, "ifgo"),
        "recurrent_kernel": _arrays.reordered(cell["hh"]["kernel"], _CONV, "ifgo"),
        "bias": _added(_arrays.reordered(sum(biases), _CONV, "ifgo"), "ifgo", 1),
    }


def _added(bias, gates, number):
    """A bias with a number added to that of the forget gate."""
    parts = _arrays.split(bias, gates)
    parts["f"] = parts["f"] + number
    return _arrays.join([parts[gate] for gate in gates])


def to_linen(weights: Weights) -> list[dict]:
    """Convert weights to the parameters of Flax Linen's layers.

    Args:
        weights: of a cell that Linen has.

    Returns:
        For each layer the tree of an `nn.RNN`, `{"cell": ...}`, or of an
        `nn.Bidirectional` of two.

    Raises:
        ValueError: if Linen has no such cell.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> params, = scanrnn.interop.to_linen(scanrnn.interop.Weights.of(gru))
        >>> params["cell"]["ir"]["kernel"].shape
        (3, 5)
    """
    kind = _kinds.check(weights, "linen", _KINDS)
    return [_trees.layer([_theirs(kind, one) for one in ds]) for ds in weights.layers]


def _theirs(kind, params):
    if kind == "conv_lstm":
        bias = _added(params["bias"], "ifgo", -1)
        bias = _arrays.reordered(bias, "ifgo", _CONV)
        kernel = _arrays.reordered(params["kernel"], "ifgo", _CONV)
        recurrent = _arrays.reordered(params["recurrent_kernel"], "ifgo", _CONV)
        return {
            "ih": {"kernel": kernel, "bias": bias},
            "hh": {"kernel": recurrent, "bias": _arrays.zeros(bias)},
        }
    gates = _kinds.gates(kind)
    kernel, recurrent, bias = (
        _arrays.split(params[name], gates)
        for name in ("kernel", "recurrent_kernel", "bias")
    )
    cell = {f"i{gate}": {"kernel": kernel[gate]} for gate in gates}
    cell |= {f"h{gate}": {"kernel": recurrent[gate]} for gate in gates}
    for gate in gates:
        cell[f"{_BIAS_SIDE.get(kind, 'i')}{gate}"]["bias"] = bias[gate]
    if "recurrent_bias" in params:
        cell["hn"]["bias"] = params["recurrent_bias"]
    if kind.startswith("elman"):
        cell = {"i": cell["ih"], "h": cell["hh"]}
    return cell
