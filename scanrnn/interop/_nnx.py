"""Flax NNX: its cells, alone and in `nnx.RNN` and `nnx.Bidirectional`."""

from typing import Any

from flax import nnx

from scanrnn.interop import _arrays, _kinds, _trees
from scanrnn.interop._weights import Weights

_KINDS = ("elman", "elman-relu", "lstm", "gru")


@_arrays.reader
def from_nnx(source: Any, *, activation: str = "tanh") -> Weights:
    """Convert the parameters of Flax NNX's recurrent cells and layers.

    Which cell it is, names and shapes tell: `LSTMCell`, `OptimizedLSTMCell`,
    `GRUCell` (which has no :math:`b_{hn}`: ours is zero) and `SimpleCell`.

    Args:
        source: a cell, `nnx.RNN` or `nnx.Bidirectional`, or its state of `nnx.Param`s
            as an `nnx.State` or nested dicts; a pair of them (forward, backward); or a
            list of such, the layers from below.
        activation: that of a `SimpleCell`, "tanh" or "relu".

    Returns:
        The weights.

    Raises:
        ValueError: for a tree of no such cell.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> cell = nnx.OptimizedLSTMCell(3, 5, rngs=nnx.Rngs(0))
        >>> rnn = scanrnn.interop.from_nnx(cell).layer()
        >>> rnn(nnx.Rngs(1).normal([2, 7, 3])).shape
        (2, 7, 5)
    """
    layers = source if isinstance(source, list) else [source]
    read = [_trees.directions(_tree(one), _is_cell, "from_nnx") for one in layers]
    kind = _trees.one_kind(read, _kind, "from_nnx")
    relu = kind == "elman" and activation == "relu"
    cell = _kinds.KINDS["elman-relu" if relu else kind][0]
    return Weights(cell, [[_ours(kind, one) for one in ones] for ones in read])


def _tree(source):
    """Nested dicts of what came."""
    if isinstance(source, tuple):
        return tuple(_tree(one) for one in source)
    if isinstance(source, nnx.Module):
        source = nnx.state(source, nnx.Param)
    return nnx.to_pure_dict(source) if isinstance(source, nnx.State) else source


_BY_GATE = {f"{side}{g}" for side in "ih" for g in ("i", "f", "g", "o")} - {"if"}


def _is_cell(tree):
    return set(tree) in ({"dense_i", "dense_h"}, _BY_GATE | {"if_"})


def _kind(cell):
    if "dense_i" not in cell:
        return "lstm"
    rows, columns = cell["dense_h"]["kernel"].shape
    return {1: "elman", 3: "gru", 4: "lstm"}.get(columns / rows, "unknown")


def _ours(kind, cell):
    if "dense_i" in cell:
        inputs, recurrent = cell["dense_i"], cell["dense_h"]
    else:
        inputs, recurrent = (
            {name: _arrays.join([gate[name] for gate in gates]) for name in gates[0]}
            for gates in (
                [cell[name] for name in names]
                for names in (("ii", "if_", "ig", "io"), ("hi", "hf", "hg", "ho"))
            )
        )
    kernel = inputs["kernel"]
    ours = {"kernel": kernel, "recurrent_kernel": recurrent["kernel"]}
    biases = [side["bias"] for side in (inputs, recurrent) if "bias" in side]
    ours["bias"] = sum(biases[1:], biases[0]) if biases else _arrays.zeros(kernel)
    if kind == "gru":
        ours["recurrent_bias"] = _arrays.zeros(kernel, kernel.shape[-1] // 3)
    return ours


def to_nnx(weights: Weights, *, optimized: bool = True) -> list[dict]:
    """Convert weights to the parameters of Flax NNX's layers.

    Args:
        weights: of a cell that NNX has.
        optimized: whether an LSTM is for `OptimizedLSTMCell` and not for `LSTMCell`.

    Returns:
        For each layer the tree of an `nnx.RNN`, `{"cell": ...}`, or of an
        `nnx.Bidirectional` of two, which `nnx.update` puts into one.

    Raises:
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
        # `if` is a word of Python.
        return {
            "if_" if side + gate == "if" else side + gate: {
                name: gates[gate] for name, gates in arrays.items()
            }
            for side, arrays in parts.items()
            for gate in "ifgo"
        }
    return {"dense_i": inputs, "dense_h": recurrent}
