"""Weights of PyTorch: `nn.RNN`, `nn.LSTM`, `nn.GRU` and their cells."""

import re
from typing import Any

from scanrnn import cells
from scanrnn.interop import _arrays, _kinds, _options
from scanrnn.interop._weights import Weights, with_zero_biases

_KINDS = ("elman", "elman-relu", "lstm", "lstm-p", "gru")
# A name without the number of a layer is of an `LSTMCell` or another cell.
_NAME = re.compile(
    r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)((?:_l\d+(?:_reverse)?)?)"
)
_PREFIX = re.compile(r"(.*)weight_ih(_l0)?")


@_arrays.reader
def from_torch(
    source: Any, *, prefix: str = "", nonlinearity: str | None = None
) -> Weights:
    """Convert the weights of a `torch.nn.RNN`, `LSTM` or `GRU`, or of their cells.

    Torch is not needed: a state dict of NumPy arrays, such as
    `scanrnn.interop.load_safetensors` reads, is enough. The sum of the two biases
    becomes our one bias. Only a GRU's candidate keeps its second bias. Missing biases
    become zeros.

    `Weights.layer` makes a layer that is called as the module is: time-major without
    `batch_first`, and with its `dropout`, which is off after `eval()`. A state dict has
    no such options; then the layer is as `batch_first=True`.

    Args:
        source: the module, a module that holds it, a state dict, or arrays by the names
            of a state dict.
        prefix: the start of the names, such as "encoder.rnn."; the last dot may be
            left out. Every array with this prefix must belong to the layer.
        nonlinearity: "tanh" or "relu" of an `nn.RNN`. A state dict does not contain it.

    Returns:
        The weights, as NumPy arrays.

    Raises:
        ValueError: if arrays are missing, have shapes that do not fit together, or
            are not those of such a layer; if other arrays have the prefix; if
            `nonlinearity` is needed and missing.

    Example:
        >>> import numpy as np, scanrnn
        >>> state_dict = {
        ...     "weight_ih_l0": np.ones([20, 3], np.float32),
        ...     "weight_hh_l0": np.ones([20, 5], np.float32),
        ... }
        >>> weights = scanrnn.interop.from_torch(state_dict)
        >>> weights.layers[0][0]["kernel"].shape, weights.hidden_features
        ((3, 20), 5)
    """
    said: set[str] = set()
    options: dict[str, Any] = {}
    if hasattr(source, "state_dict"):
        layer = dict(source.named_modules()).get(prefix.removesuffix("."))
        if layer is not None:
            _options.TORCH.read("from_torch", layer)
            options = _call_options(layer)
            said |= {layer.nonlinearity} if hasattr(layer, "nonlinearity") else set()
        source = source.state_dict()
    starts = _starts(source)
    if prefix not in starts and f"{prefix}." in starts:
        prefix += "."
    below = {
        name.removeprefix(prefix): value
        for name, value in source.items()
        if name.startswith(prefix)
    }
    tails = _tails(below, prefix, starts)
    kind, out = _kind(below, prefix, tails[0][0])
    arrays = _arrays.fit(
        "from_torch",
        below,
        _axes(kind, below, tails),
        sizes={"E": len(tails[0]) * out},
        called=lambda name: prefix + name,
    )
    kind = _options.activation(
        "from_torch", kind, nonlinearity, said, argument="nonlinearity"
    )
    layers = [[_ours(kind, arrays, tail) for tail in ends] for ends in tails]
    cell = _kinds.KINDS[kind][0]
    if "projection" in layers[0][0]:
        cell = cells.lstm(projection=out)
    return Weights(cell, layers, options)


def _call_options(layer) -> dict[str, Any]:
    """The options of our layer that is called as a module of torch is."""
    if not hasattr(layer, "batch_first"):  # an `LSTMCell` or another cell
        return {}
    options: dict[str, Any] = {} if layer.batch_first else {"time_major": True}
    if layer.dropout and layer.num_layers > 1:
        options |= {"dropout": layer.dropout, "deterministic": not layer.training}
    return options


def _starts(names) -> list[str]:
    """What the names of each recurrent layer start with."""
    return sorted({match[1] for name in names if (match := _PREFIX.fullmatch(name))})


def _tails(below, prefix, starts) -> list[list[str]]:
    """The ends of the names of the arrays, for each layer and direction."""
    found = {match[2] for name in below if (match := _NAME.fullmatch(name))}
    if found == {""}:  # an `LSTMCell` or another cell
        return [[""]]
    directions = 2 if "_l0_reverse" in found else 1
    ends = ["", "_reverse"][:directions]
    count = len(found) // directions
    wanted = [[f"_l{index}{end}" for end in ends] for index in range(count)]
    if not found:
        others = " or ".join(f"prefix={start!r}" for start in starts)
        raise ValueError(
            f"from_torch: prefix={prefix!r} is of no recurrent layer (weight_ih_l0 and "
            f"so on); {f'give {others}' if others else 'the source has none'}"
        )
    ends = [tail for tails in wanted for tail in tails]
    if found != set(ends):
        raise ValueError(
            f"from_torch: names below prefix={prefix!r} end with "
            f"{', '.join(map(repr, sorted(found)))}, want {', '.join(map(repr, ends))}"
        )
    return wanted


def _kind(below, prefix, tail):
    """The kind of a layer and the size of h, from the shapes of the matrices."""
    shapes = {
        name: _arrays.array(below[name], f"from_torch: {prefix}{name}").shape
        for name in (f"weight_hh{tail}", f"weight_hr{tail}")
        if name in below
    }
    hh, *hr = [shape for shape in shapes.values() if len(shape) == 2] or [(0, 0)]
    size = hr[0][1] if hr else hh[1]
    kind = _GATES.get(hh[0] / size if size else 0)
    if kind is None or (len(shapes) == 2 and (kind != "lstm" or not hr)):
        raise ValueError(
            f"from_torch: below prefix={prefix!r} are {shapes or sorted(below)}, want "
            f"weight_hh{tail} [G * H, H] of G = 1 (RNN), 3 (GRU) or 4 gates (LSTM); "
            f"of an LSTM with proj_size [4H, P], and weight_hr{tail} [P, H]"
        )
    return kind, hh[1]


_GATES = {1: "elman", 3: "gru", 4: "lstm"}


def _axes(kind, below, tails):
    """The axes of all arrays; E is the number of features from the layer below."""
    rows = {"elman": "H", "gru": "3H", "lstm": "4H"}[kind]
    projected = f"weight_hr{tails[0][0]}" in below
    biases = any(name.startswith("bias_") for name in below)
    axes = {}
    for index, ends in enumerate(tails):
        for tail in ends:
            if projected:
                axes[f"weight_hr{tail}"] = "P H"
            axes[f"weight_hh{tail}"] = f"{rows} {'P' if projected else 'H'}"
            axes[f"weight_ih{tail}"] = f"{rows} {'E' if index else 'D'}"
            if biases:
                axes |= {f"bias_ih{tail}": rows, f"bias_hh{tail}": rows}
    return axes


def _ours(kind, arrays, tail):
    """One direction of a layer by our names."""
    kernel = arrays[f"weight_ih{tail}"].T
    ours = {"kernel": kernel, "recurrent_kernel": arrays[f"weight_hh{tail}"].T}
    first = arrays.get(f"bias_ih{tail}", _arrays.zeros(kernel))
    second = arrays.get(f"bias_hh{tail}", _arrays.zeros(kernel))
    if kind == "gru":
        size = kernel.shape[-1] // 3
        ours["recurrent_bias"] = second[2 * size :]
        second = _arrays.join([second[: 2 * size], _arrays.zeros(kernel, size)])
    ours["bias"] = first + second
    if f"weight_hr{tail}" in arrays:
        ours["projection"] = arrays[f"weight_hr{tail}"].T
    return ours


def to_torch(weights: Weights, *, prefix: str = "") -> dict[str, Any]:
    """Convert weights to the state dict of a `torch.nn.RNN`, `LSTM` or `GRU`.

    Args:
        weights: weights of a cell that torch has.
        prefix: the start of the names, such as "encoder.rnn.".

    Returns:
        Arrays by torch's names. The second bias is zero, except in the candidate of a
        GRU.

    Raises:
        TypeError: for anything else than `Weights`, such as a layer.
        ValueError: if torch has no such cell, or `projection` is not below H.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, bidirectional=True, rngs=nnx.Rngs(0))
        >>> state_dict = scanrnn.interop.to_torch(scanrnn.interop.Weights.of(gru))
        >>> state_dict["weight_hh_l0_reverse"].shape
        (15, 5)
    """
    weights = with_zero_biases("to_torch", weights)
    if _kinds.check(weights, "torch", _KINDS) == "lstm-p":
        _check_projection(weights)
    state_dict = {}
    for index, directions in enumerate(weights.layers):
        for suffix, params in zip(("", "_reverse"), directions, strict=False):
            for name, value in _theirs(params).items():
                state_dict[f"{prefix}{name}_l{index}{suffix}"] = value
    return state_dict


def _check_projection(weights):
    """Raise ValueError for a projection that torch cannot have."""
    size = weights.hidden_features
    if weights.cell.projection == size:
        raise ValueError(
            f"to_torch: the cell has projection={size} and hidden_features={size}, and "
            "torch wants proj_size below hidden_size; make the layer with a smaller "
            "projection. To keep these weights, save them with save_safetensors, or "
            "export the layer with scanrnn.serving"
        )


def _theirs(params):
    second = _arrays.zeros(params["bias"])
    if "recurrent_bias" in params:
        two = second[: -params["recurrent_bias"].shape[-1]]
        second = _arrays.join([two, params["recurrent_bias"]])
    theirs = {
        "weight_ih": params["kernel"].T,
        "weight_hh": params["recurrent_kernel"].T,
        "bias_ih": params["bias"],
        "bias_hh": second,
    }
    if "projection" in params:
        theirs["weight_hr"] = params["projection"].T
    return theirs
