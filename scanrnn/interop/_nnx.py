"""Weights of Flax NNX: cells, alone and in `nnx.RNN` and `nnx.Bidirectional`."""

from typing import Any

from flax import nnx

from scanrnn import nnx as ours
from scanrnn.interop import _arrays, _kinds, _options, _trees
from scanrnn.interop._weights import Weights, with_zero_biases

_KINDS = ("elman", "elman-relu", "lstm", "gru")
# Cells with the names of Flax's are instances of Flax's classes too.
_OURS = (
    *(ours.RNN, ours.RNNCell, ours.Bidirectional),
    *(ours.LSTMCell, ours.OptimizedLSTMCell, ours.GRUCell, ours.SimpleCell),
)


@_arrays.reader
def from_nnx(source: Any, *, activation: str | None = None) -> Weights:
    """Convert the parameters of Flax NNX's recurrent cells and layers.

    Names and shapes tell which cell it is: `LSTMCell`, `OptimizedLSTMCell`, `GRUCell`
    (which has no :math:`b_{hn}`; ours becomes zero) or `SimpleCell`. Weights do not say
    whether a layer is time-major: `Weights.layer(time_major=True)` makes one that is.

    Args:
        source: a cell, `nnx.RNN` or `nnx.Bidirectional`; or its state of `nnx.Param`
            as an `nnx.State` or nested dicts; a pair of them (forward, backward); or a
            list of layers, the lowest first.
        activation: the activation of a `SimpleCell`, "tanh" or "relu"; None for that of
            the object, or for "tanh" if the source is a tree.

    Returns:
        The weights.

    Raises:
        ValueError: if the source is a layer of `scanrnn.nnx`; if the tree is not that
            of such a cell, if an array is missing or unknown or has a wrong shape, or
            if an object has an option that our cell does not have, such as `residual`
            or `reverse`.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> cell = nnx.OptimizedLSTMCell(3, 5, rngs=nnx.Rngs(0))
        >>> rnn = scanrnn.interop.from_nnx(cell).layer()
        >>> rnn(nnx.Rngs(1).normal([2, 7, 3])).shape
        (2, 7, 5)
    """
    layers = source if isinstance(source, list) else [source]
    said: set[str] = set()
    trees = [_tree(one, said) for one in layers]
    read = [_trees.directions(tree, _is_cell, "from_nnx") for tree in trees]
    kind = _trees.one_kind(read, _kind, "from_nnx")
    kind = _options.activation("from_nnx", kind, activation, said, "tanh")
    return Weights(
        _kinds.KINDS[kind][0], [[_ours(kind, one) for one in ones] for ones in read]
    )


def _tree(source, said):
    """The source as nested dicts; activations of objects are added to `said`."""
    if isinstance(source, tuple):
        return tuple(_tree(one, said) for one in source)
    if isinstance(source, _OURS):
        raise ValueError(
            f"from_nnx: got {type(source).__name__}, which is a layer of scanrnn.nnx "
            "already: use it as it is; Weights.of(layer) are the weights of an RNN or "
            "of a cell for one step"
        )
    if isinstance(source, nnx.Module):
        for _, module in nnx.iter_modules(source):
            options = _options.NNX.read("from_nnx", module)
            said |= {options[name] for name in ("activation_fn",) if name in options}
        if isinstance(source, nnx.Bidirectional):  # both may share a cell
            halves = source.forward_rnn, source.backward_rnn
            return tuple(_tree(one, said) for one in halves)
        source = nnx.state(source, nnx.Not(nnx.RngState))
    return nnx.to_pure_dict(source) if isinstance(source, nnx.State) else source


# NNX writes `if_`, because `if` is a keyword of Python.
_GATES = {"i": ("ii", "if_", "ig", "io"), "h": ("hi", "hf", "hg", "ho")}


def _is_cell(tree):
    return set(tree) in ({"dense_i", "dense_h"}, {*_GATES["i"], *_GATES["h"]})


def _kind(cell):
    if "dense_i" not in cell:
        return "lstm"
    kernel = _trees.flat(cell).get("dense_h/kernel")
    shape = _arrays.array(kernel, "from_nnx: dense_h/kernel").shape
    count = shape[1] / shape[0] if len(shape) == 2 and shape[0] else 0
    if count not in _COUNTS:
        raise ValueError(
            f"from_nnx: dense_h/kernel has shape {shape}, want [H, H] (SimpleCell), "
            "[H, 3H] (GRUCell) or [H, 4H] (OptimizedLSTMCell)"
        )
    return _COUNTS[count]


_COUNTS = {1: "elman", 3: "gru", 4: "lstm"}


def _ours(kind, cell):
    cell = _trees.flat(cell)
    if "ii/kernel" in cell:
        axes = {f"{name}/kernel": "H H" for name in _GATES["h"]}
        axes |= {f"{name}/kernel": "D H" for name in _GATES["i"]}
        axes |= {f"{name}/bias": "H" for name in _GATES["h"]}
        cell = _arrays.fit("from_nnx", cell, axes)
        kernel, recurrent, bias = (
            _arrays.join([cell[f"{name}/{part}"] for name in _GATES[side]])
            for side, part in (("i", "kernel"), ("h", "kernel"), ("h", "bias"))
        )
    else:
        width = {"lstm": "4H", "gru": "3H"}.get(kind, "H")
        own = "dense_h/bias" if kind == "lstm" else "dense_i/bias"
        axes = {"dense_h/kernel": f"H {width}", "dense_i/kernel": f"D {width}"}
        cell = _arrays.fit("from_nnx", cell, axes | {own: width})
        names = ("dense_i/kernel", "dense_h/kernel", own)
        kernel, recurrent, bias = (cell[name] for name in names)
    ours = {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}
    if kind == "gru":
        ours["recurrent_bias"] = _arrays.zeros(kernel, kernel.shape[-1] // 3)
    return ours


def to_nnx(weights: Weights, *, optimized: bool = True) -> list[dict]:
    """Convert weights to the parameters of Flax NNX's layers.

    Args:
        weights: weights of a cell that NNX has.
        optimized: True for `OptimizedLSTMCell`, False for `LSTMCell`. Other cells
            ignore it.

    Returns:
        For each layer the tree of an `nnx.RNN`, `{"cell": ...}`, or, with two
        directions, of an `nnx.Bidirectional`. `nnx.update` puts it into the module.

    Raises:
        TypeError: for anything else than `Weights`, such as a layer.
        ValueError: if NNX has no such cell, or a GRU has a :math:`b_{hn}` other than
            zero.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> elman = scanrnn.nnx.Elman(3, 5, rngs=nnx.Rngs(0))
        >>> tree, = scanrnn.interop.to_nnx(scanrnn.interop.Weights.of(elman))
        >>> theirs = nnx.RNN(nnx.SimpleCell(3, 5, rngs=nnx.Rngs(1)))
        >>> nnx.update(theirs, tree)
        >>> bool((theirs.cell.dense_i.kernel == elman.layers[0]["kernel"]).all())
        True
    """
    weights = with_zero_biases("to_nnx", weights)
    kind = _kinds.check(weights, "nnx", _KINDS)
    if kind == "gru":
        rows = [one["recurrent_bias"] for ones in weights.layers for one in ones]
        if any(bool((row != 0).any()) for row in rows):
            raise ValueError(
                "to_nnx: the GRU has a recurrent_bias (b_hn) that is not zero, for "
                "which nnx.GRUCell has no place; Linen's and torch's have"
            )
    return [
        _trees.layer([_theirs(kind, one, optimized) for one in directions])
        for directions in weights.layers
    ]


def _theirs(kind, params, optimized):
    inputs = {"kernel": params["kernel"]}
    recurrent = {"kernel": params["recurrent_kernel"]}
    side = recurrent if kind == "lstm" else inputs
    side["bias"] = params["bias"]
    if kind == "lstm" and not optimized:
        parts = {
            side: {name: _arrays.split(a, "ifgo") for name, a in arrays.items()}
            for side, arrays in (("i", inputs), ("h", recurrent))
        }
        return {
            "if_" if side + gate == "if" else side + gate: {
                name: gates[gate] for name, gates in arrays.items()
            }
            for side, arrays in parts.items()
            for gate in "ifgo"
        }
    return {"dense_i": inputs, "dense_h": recurrent}
