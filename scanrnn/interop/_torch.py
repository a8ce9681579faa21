"""PyTorch: `nn.RNN`, `nn.LSTM` and `nn.GRU`, without importing it."""

import re
from collections.abc import Mapping
from typing import Any

from scanrnn import cells
from scanrnn.interop import _arrays, _kinds
from scanrnn.interop._weights import Weights

_KINDS = ("elman", "elman-relu", "lstm", "lstm-p", "gru")
_NAME = re.compile(r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l(\d+)(_reverse)?")


@_arrays.reader
def from_torch(
    source: Any, *, prefix: str = "", nonlinearity: str | None = None
) -> Weights:
    """Convert the weights of a `torch.nn.RNN`, `LSTM` or `GRU`.

    Torch is not needed: a state dict of NumPy arrays, such as
    `scanrnn.interop.load_safetensors` reads, will do. Its two biases become one, but
    for the second one of a GRU's candidate; without biases ours are zeros.

    Args:
        source: the module, its state dict, or arrays by its names.
        prefix: what stands before the names, such as "encoder.rnn.".
        nonlinearity: "tanh" or "relu" of an `nn.RNN`, which its weights do not tell.

    Returns:
        The weights, as NumPy arrays.

    Raises:
        ValueError: if arrays are missing, have shapes that do not belong together, or
            are of no such layer.

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
    nonlinearity = nonlinearity or getattr(source, "nonlinearity", None)
    if hasattr(source, "state_dict"):
        source = source.state_dict()
    found = _sorted(source, prefix)
    first = found[0][0]
    rows, size = first["weight_ih"].shape[0], first["weight_hh"].shape[1]
    if "weight_hr" in first:
        size = first["weight_hr"].shape[1]
    kind = {size: "elman", 3 * size: "gru", 4 * size: "lstm"}.get(rows)
    if kind is None:
        raise ValueError(
            f"from_torch: {prefix}weight_ih_l0 has {rows} rows and {prefix}weight_hh_l0"
            f" says {size} features, want 1 (RNN), 3 (GRU) or 4 (LSTM) times as many"
        )
    if kind == "elman" and nonlinearity not in ("tanh", "relu"):
        raise ValueError(
            f"from_torch: nonlinearity={nonlinearity!r}, want 'tanh' or 'relu': the "
            "weights of an nn.RNN do not tell"
        )
    cell = _kinds.KINDS["elman-relu" if nonlinearity == "relu" else kind][0]
    if kind == "lstm" and "weight_hr" in first:
        cell = cells.lstm(projection=first["weight_hr"].shape[0])
    return Weights(cell, [[_ours(kind, d) for d in ds] for ds in found])


def _sorted(source: Mapping[str, Any], prefix: str) -> list[list[dict[str, Any]]]:
    """The arrays below the prefix, by layer and direction."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for name, value in source.items():
        if match := _NAME.fullmatch(name.removeprefix(prefix)):
            if name.startswith(prefix):
                part, layer, reverse = match.groups()
                place = int(layer), int(bool(reverse))
                found.setdefault(place, {})[part] = _arrays.array(value)
    directions = 2 if (0, 1) in found else 1
    count = len(found) // directions
    wanted = {(k, d) for k in range(count) for d in range(directions)}
    if not found or set(found) != wanted:
        others = sorted({m[1] for n in source if (m := _PREFIX.fullmatch(n))})
        raise ValueError(
            f"from_torch: found the layers and directions {sorted(found)} below prefix="
            f"{prefix!r}, want {sorted(wanted) or 'weight_ih_l0 and so on'}; recurrent "
            f"layers are below {others}"
        )
    for place, parts in found.items():
        if lacking := {"weight_ih", "weight_hh"} - set(parts):
            raise ValueError(f"from_torch: layer {place[0]} has no {sorted(lacking)}")
        if ("bias_ih" in parts) != ("bias_hh" in parts):
            raise ValueError(f"from_torch: layer {place[0]} has one bias of two")
        for name, value in parts.items():
            if value.ndim != (1 if name.startswith("bias") else 2):
                raise ValueError(
                    f"from_torch: {name} of layer {place[0]} has shape {value.shape}"
                )
    return [[found[k, d] for d in range(directions)] for k in range(count)]


_PREFIX = re.compile(r"(.*)weight_ih_l0")


def _ours(kind, parts):
    """One direction of a layer by our names."""
    kernel = parts["weight_ih"].T
    ours = {"kernel": kernel, "recurrent_kernel": parts["weight_hh"].T}
    first = parts.get("bias_ih", _arrays.zeros(kernel))
    second = parts.get("bias_hh", _arrays.zeros(kernel))
    if kind == "gru":
        size = kernel.shape[-1] // 3
        ours["recurrent_bias"] = second[2 * size :]
        second = _arrays.join([second[: 2 * size], _arrays.zeros(kernel, size)])
    ours["bias"] = first + second
    if "weight_hr" in parts:
        ours["projection"] = parts["weight_hr"].T
    return ours


def to_torch(weights: Weights, *, prefix: str = "") -> dict[str, Any]:
    """Convert weights to the state dict of a `torch.nn.RNN`, `LSTM` or `GRU`.

    Args:
        weights: of a cell that torch has.
        prefix: what to put before the names.

    Returns:
        Arrays by torch's names. The second bias is zero but for that of a GRU's
        candidate.

    Raises:
        ValueError: if torch has no such cell.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> gru = scanrnn.nnx.GRU(3, 5, bidirectional=True, rngs=nnx.Rngs(0))
        >>> state_dict = scanrnn.interop.to_torch(scanrnn.interop.Weights.of(gru))
        >>> state_dict["weight_hh_l0_reverse"].shape
        (15, 5)
    """
    _kinds.check(weights, "torch", _KINDS)
    state_dict = {}
    for index, directions in enumerate(weights.layers):
        for suffix, params in zip(("", "_reverse"), directions, strict=False):
            for name, value in _theirs(params).items():
                state_dict[f"{prefix}{name}_l{index}{suffix}"] = value
    return state_dict


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
