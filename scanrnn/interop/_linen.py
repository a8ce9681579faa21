"""Weights of Flax Linen: cells, alone and in `nn.RNN` and `nn.Bidirectional`."""

from collections.abc import Mapping
from typing import Any

from scanrnn import cells
from scanrnn.interop import _arrays, _kinds, _options, _trees
from scanrnn.interop._weights import Weights, with_zero_biases

_KINDS = ("elman", "elman-relu", "lstm", "gru", "mgu", "conv_lstm")
# Which matrices have the biases: of the carry ("h") or of the input ("i"). The second
# bias of a GRU's or MGU's candidate is not in this table.
_BIAS_SIDE = {"lstm": "h", "gru": "i", "mgu": "i"}
_CONV = "igfo"  # the order of a ConvLSTMCell, which adds one to f


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
def from_linen(
    params: Any, *, activation: str | None = None, module: Any = None
) -> Weights:
    """Convert the parameters of Flax Linen's recurrent cells and layers.

    The names tell which cell it is: `LSTMCell` and `OptimizedLSTMCell` (which have the
    same weights), `GRUCell`, `MGUCell`, `SimpleCell` or `ConvLSTMCell`. The names do
    not tell the options of the module. If you give the module too, its options are
    checked. Weights do not say whether a layer is time-major:
    `Weights.layer(time_major=True)` makes one that is.

    Args:
        params: the tree of a cell, of an `nn.RNN` or of an `nn.Bidirectional`; a pair
            of trees (forward, backward); or a list of layers, the lowest first.
        activation: the activation of a `SimpleCell`, "tanh" or "relu"; None for that of
            `module`, or for "tanh" without a module.
        module: the module of the parameters: a cell, an `nn.RNN`, an
            `nn.Bidirectional`, or a list of them.

    Returns:
        The weights. For a `ConvLSTMCell`, one is added to the bias of the forget gate,
        because the cell adds it in every step.

    Raises:
        ValueError: if the tree is not that of such a cell, if an array is missing or
            unknown or has a wrong shape, or if the module has an option that our cell
            does not have.

    Example:
        >>> import flax.linen as nn, jax, jax.numpy as jnp, scanrnn
        >>> rnn = nn.RNN(nn.GRUCell(5))
        >>> variables = rnn.init(jax.random.key(0), jnp.ones([2, 7, 3]))
        >>> scanrnn.interop.from_linen(variables["params"]).layers[0][0]["kernel"].shape
        (3, 15)
    """
    if _is_ours(params):
        raise ValueError(
            "from_linen: got the parameters of a layer of scanrnn.linen, which needs "
            "no conversion: use the layer as it is; Weights.from_tree(cell, params) "
            "are its weights"
        )
    layers = params if isinstance(params, list) else [params]
    read = [_trees.directions(tree, _is_cell, "from_linen") for tree in layers]
    kind = _trees.one_kind(read, _kind, "from_linen")
    read = [[_fitted(kind, one) for one in ones] for ones in read]
    said = _activations(module if isinstance(module, list) else [module])
    kind = _options.activation("from_linen", kind, activation, said, "tanh")
    if kind == "conv_lstm":
        cell = cells.conv_lstm(kernel_size=read[0][0]["ih/kernel"].shape[:-2])
    else:
        cell = _kinds.KINDS[kind][0]
    return Weights(cell, [[_ours(kind, one) for one in ones] for ones in read])


def _is_ours(params) -> bool:
    """Whether parameters are those of our layers, below any number of names."""
    while isinstance(params, Mapping) and len(params) == 1:
        params = next(iter(params.values()))
    if isinstance(params, Mapping):
        params = params.get("layers_0", params)
    return isinstance(params, Mapping) and "recurrent_kernel" in params


def _activations(modules):
    """Check the options of the modules; return the activations of their cells."""
    found = set()
    for module in modules:
        if module is None:
            continue
        options = _options.LINEN.read("from_linen", module)
        found |= {options[name] for name in ("activation_fn",) if name in options}
        inner = ("cell", "forward_rnn", "backward_rnn")
        found |= _activations([getattr(module, name, None) for name in inner])
    return found


def _kind(tree):
    return _BY_NAMES[frozenset(tree)]


def _is_cell(tree: Mapping) -> bool:
    return frozenset(tree) in _BY_NAMES


def _fitted(kind, tree):
    """The arrays of a cell by path; raise if one is missing or unknown."""
    if kind == "conv_lstm":
        axes = {"hh/kernel": "... H 4H", "ih/kernel": "... D 4H"}
        biases = {"hh/bias": "4H", "ih/bias": "4H"}
    else:
        gates = [""] if kind == "elman" else _kinds.gates(kind)
        axes = {f"h{gate}/kernel": "H H" for gate in gates}
        axes |= {f"i{gate}/kernel": "D H" for gate in gates}
        biases = {f"{_BIAS_SIDE.get(kind, 'i')}{gate}/bias": "H" for gate in gates}
        biases |= {"hn/bias": "H"} if kind in ("gru", "mgu") else {}
    tree = _trees.flat(tree)
    # A convolution may have no biases.
    optional = () if kind != "conv_lstm" or set(biases) & set(tree) else tuple(biases)
    return _arrays.fit("from_linen", tree, axes | biases, optional=optional)


def _ours(kind, cell):
    if kind == "conv_lstm":
        return _conv_ours(cell)
    gates = [""] if kind.startswith("elman") else _kinds.gates(kind)
    ours = {
        name: _arrays.join([cell[f"{side}{gate}/{part}"] for gate in gates])
        for name, side, part in (
            ("kernel", "i", "kernel"),
            ("recurrent_kernel", "h", "kernel"),
            ("bias", _BIAS_SIDE.get(kind, "i"), "bias"),
        )
    }
    return ours | ({"recurrent_bias": cell["hn/bias"]} if "hn/bias" in cell else {})


def _conv_ours(cell):
    kernel, recurrent = cell["ih/kernel"], cell["hh/kernel"]
    biases = [cell.get(f"{k}/bias", _arrays.zeros(kernel)) for k in ("ih", "hh")]
    return {
        "kernel": _arrays.reordered(kernel, _CONV, "ifgo"),
        "recurrent_kernel": _arrays.reordered(recurrent, _CONV, "ifgo"),
        "bias": _added(_arrays.reordered(sum(biases), _CONV, "ifgo"), "ifgo", 1),
    }


def _added(bias, gates, number):
    """A bias, with a number added to the part of the forget gate."""
    parts = _arrays.split(bias, gates)
    parts["f"] = parts["f"] + number
    return _arrays.join([parts[gate] for gate in gates])


def to_linen(weights: Weights) -> list[dict]:
    """Convert weights to the parameters of Flax Linen's layers.

    Args:
        weights: weights of a cell that Linen has.

    Returns:
        For each layer the tree of an `nn.RNN`, `{"cell": ...}`, or, with two
        directions, of an `nn.Bidirectional`.

    Raises:
        TypeError: for anything else than `Weights`, such as a layer.
        ValueError: if Linen has no such cell.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> params, = scanrnn.interop.to_linen(scanrnn.interop.Weights.of(gru))
        >>> params["cell"]["ir"]["kernel"].shape
        (3, 5)
    """
    weights = with_zero_biases("to_linen", weights)
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
