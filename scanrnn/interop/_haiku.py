"""Haiku: `LSTM`, `GRU` and `VanillaRNN`."""

from collections.abc import Mapping, Sequence
from typing import Any

from scanrnn.interop import _arrays, _kinds
from scanrnn.interop._weights import Weights

_LSTM, _GRU = "igfo", "zrn"  # Haiku's orders; its f has one added in every step
_KINDS = ("elman-relu", "lstm", "gru-haiku")
_MODULES = {"elman-relu": "vanilla_rnn", "lstm": "lstm", "gru-haiku": "gru"}


@_arrays.reader
def from_haiku(
    params: Mapping[str, Mapping[str, Any]], names: str | Sequence[str] | None = None
) -> Weights:
    """Convert the parameters of Haiku's recurrent cores.

    Args:
        params: of a transformed function, by modules.
        names: of the cores, from below, such as "lm/lstm"; None for the one there is.

    Returns:
        The weights. One is added to the bias of an LSTM's forget gate, as Haiku does in
        every step: a bias smaller than one loses what that rounds away.

    Raises:
        ValueError: if there is no such core.

    Example:
        >>> import numpy as np, scanrnn
        >>> params = {"lstm/linear": {"w": np.ones([8, 20]), "b": np.zeros(20)}}
        >>> scanrnn.interop.from_haiku(params).layers[0][0]["bias"].reshape(4, 5)[:, 0]
        array([0., 1., 0., 0.])
    """
    found = _cores(params)
    names = [names] if isinstance(names, str) else names
    if names is None and len(found) == 1:
        names = list(found)
    if names is None or not set(names) <= set(found):
        raise ValueError(
            f"from_haiku: names={names}, want some of the cores {sorted(found)}, in "
            "their order from below"
        )
    kinds = {found[name] for name in names} or {"none"}
    if len(kinds) != 1:
        raise ValueError(f"from_haiku: the cores are {sorted(kinds)}, want one kind")
    (kind,) = kinds
    layers = [[_ours(kind, params, name)] for name in names]
    return Weights(_kinds.KINDS[kind][0], layers)


def _cores(params):
    """The kinds of the cores, by name."""
    found = {}
    for path, arrays in params.items():
        name, _, last = path.rpartition("/")
        if set(arrays) == {"w_i", "w_h", "b"}:
            found[path] = "gru-haiku"
        elif last == "linear" and f"{name}/linear_1" in params:
            found[name] = "elman-relu"
        elif last == "linear" and name.rpartition("/")[2].startswith("lstm"):
            found[name] = "lstm"
    return found


def _ours(kind, params, name):
    if kind == "gru-haiku":
        core = {k: _arrays.array(v) for k, v in params[name].items()}
        names = {"kernel": "w_i", "recurrent_kernel": "w_h", "bias": "b"}
        return {k: _arrays.reordered(core[v], _GRU, "rzn") for k, v in names.items()}
    linear = {k: _arrays.array(v) for k, v in params[f"{name}/linear"].items()}
    if kind == "elman-relu":
        second = {k: _arrays.array(v) for k, v in params[f"{name}/linear_1"].items()}
        bias = linear["b"] + second["b"] if "b" in second else linear["b"]
        kernels = {"kernel": linear["w"], "recurrent_kernel": second["w"]}
        return {**kernels, "bias": bias}
    joint = _arrays.reordered(linear["w"], _LSTM, "ifgo")
    size = joint.shape[-1] // 4
    bias = _arrays.split(linear["b"], _LSTM)
    bias["f"] = bias["f"] + 1
    return {
        "kernel": joint[:-size],
        "recurrent_kernel": joint[-size:],
        "bias": _arrays.join([bias[gate] for gate in "ifgo"]),
    }


def to_haiku(
    weights: Weights, names: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Convert weights to the parameters of Haiku's recurrent cores.

    Args:
        weights: of one direction, and a cell that Haiku has.
        names: of the cores, from below; None for "lstm", "lstm_1" and so on.

    Returns:
        Arrays by module and name. One is taken from the bias of an LSTM's forget gate.

    Raises:
        ValueError: if Haiku has no such cell, or there are not as many names as layers.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> lstm = scanrnn.nnx.LSTM(3, 5, rngs=nnx.Rngs(0))
        >>> params = scanrnn.interop.to_haiku(scanrnn.interop.Weights.of(lstm))
        >>> params["lstm/linear"]["w"].shape
        (8, 20)
    """
    kind = _kinds.check(weights, "haiku", _KINDS)
    _kinds.one_direction(weights, "haiku")
    if names is None:
        first = _MODULES[kind]
        names = [first, *(f"{first}_{k}" for k in range(1, weights.num_layers))]
    if len(names) != weights.num_layers:
        raise ValueError(
            f"to_haiku: got {len(names)} names for {weights.num_layers} layers"
        )
    params = {}
    for name, (one,) in zip(names, weights.layers, strict=True):
        params |= _theirs(kind, one, name)
    return params


def _theirs(kind, params, name):
    kernel, recurrent, bias = (
        params[part] for part in ("kernel", "recurrent_kernel", "bias")
    )
    if kind == "gru-haiku":
        kernel, recurrent, bias = (
            _arrays.reordered(a, "rzn", _GRU) for a in (kernel, recurrent, bias)
        )
        return {name: {"w_i": kernel, "w_h": recurrent, "b": bias}}
    if kind == "elman-relu":
        second = {"w": recurrent, "b": _arrays.zeros(bias)}
        return {
            f"{name}/linear": {"w": kernel, "b": bias},
            f"{name}/linear_1": second,
        }
    parts = _arrays.split(bias, "ifgo")
    parts["f"] = parts["f"] - 1
    joint = _arrays.join([kernel, recurrent], axis=0)
    return {
        f"{name}/linear": {
            "w": _arrays.reordered(joint, "ifgo", _LSTM),
            "b": _arrays.join([parts[gate] for gate in _LSTM]),
        }
    }
