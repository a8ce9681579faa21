"""Weights of Haiku: `LSTM`, `GRU` and `VanillaRNN`."""

from collections.abc import Mapping, Sequence
from typing import Any

from scanrnn.interop import _arrays, _kinds
from scanrnn.interop._weights import Weights, with_zero_biases

_LSTM, _GRU = "igfo", "zrn"  # Haiku's orders; its LSTM adds one to f
_KINDS = ("elman-relu", "lstm", "gru-haiku")
_MODULES = {"elman-relu": "vanilla_rnn", "lstm": "lstm", "gru-haiku": "gru"}


@_arrays.reader
def from_haiku(
    params: Mapping[str, Mapping[str, Any]], names: str | Sequence[str] | None = None
) -> Weights:
    """Convert the parameters of Haiku's recurrent cores.

    Args:
        params: the parameters of a transformed function, by module.
        names: names of the cores, lowest layer first, such as "lm/lstm". None if there
            is only one core and it has the name that Haiku gives it ("lstm", "gru" or
            "vanilla_rnn", also with a number). Other names must be given, because
            linear layers of an MLP can look like a core.

    Returns:
        The weights. One is added to the bias of an LSTM's forget gate, because Haiku
        adds it in every step. The sum is rounded: a small bias loses its last digits.

    Raises:
        ValueError: if there is no such core, if the cores are of different kinds, or if
            an array has a wrong shape.

    Example:
        >>> import numpy as np, scanrnn
        >>> params = {"lstm/linear": {"w": np.ones([8, 20]), "b": np.zeros(20)}}
        >>> scanrnn.interop.from_haiku(params).layers[0][0]["bias"].reshape(4, 5)[:, 0]
        array([0., 1., 0., 0.])
    """
    found = _cores(params)
    names = [names] if isinstance(names, str) else names
    own = [name for name, kind in found.items() if _has_own_name(name, kind)]
    if names is None and len(own) == 1:
        names = own
    if not names or not set(names) <= set(found):
        others = {name: kind for name, kind in found.items() if name not in own}
        raise ValueError(
            f"from_haiku: names={names}, want some of the cores {sorted(own)}, in "
            "their order, the lowest layer first"
            + (f"; if you name them, these would fit: {others}" if others else "")
        )
    kinds = {found[name] for name in names}
    if len(kinds) != 1:
        raise ValueError(
            f"from_haiku: the cores are {sorted(kinds)}, want one kind; "
            "pick them by names=[...]"
        )
    (kind,) = kinds
    layers = [[_ours(kind, params, name)] for name in names]
    return Weights(_kinds.KINDS[kind][0], layers)


# The arrays of a core by path, and their axes. A VanillaRNN may lack its second bias.
# An LSTM has one matrix for input and carry together: X = D + H rows.
_AXES = {
    "gru-haiku": {"w_h": "H 3H", "w_i": "D 3H", "b": "3H"},
    "elman-relu": {
        **{"linear_1/w": "H H", "linear/w": "D H"},
        **{"linear/b": "H", "linear_1/b": "H"},
    },
    "lstm": {"linear/w": "X 4H", "linear/b": "4H"},
}


def _cores(params):
    """The modules that have the arrays of a core: their kinds by their names."""
    found = {}
    for path in params:
        name = path.rpartition("/")[0] if path.endswith("/linear") else path
        names = set(_below(params, name))
        for kind, axes in _AXES.items():
            if names in (set(axes), set(axes) - {"linear_1/b"}):
                found[name] = kind
    return found


def _below(params, name):
    """The arrays of a module and of the modules in it, by path."""
    return {
        f"{path}/{one}".removeprefix(f"{name}/"): value
        for path, arrays in params.items()
        if path == name or path.startswith(f"{name}/")
        for one, value in arrays.items()
    }


def _has_own_name(name, kind):
    return name.rpartition("/")[2].startswith(_MODULES[kind])


def _ours(kind, params, name):
    core = _arrays.fit(
        "from_haiku",
        _below(params, name),
        _AXES[kind],
        optional=["linear_1/b"],
        called=lambda path: f"{name}/{path}",
    )
    if kind == "gru-haiku":
        names = {"kernel": "w_i", "recurrent_kernel": "w_h", "bias": "b"}
        return {k: _arrays.reordered(core[v], _GRU, "rzn") for k, v in names.items()}
    weight, bias = core["linear/w"], core["linear/b"]
    if kind == "elman-relu":
        bias = bias + core["linear_1/b"] if "linear_1/b" in core else bias
        kernels = {"kernel": weight, "recurrent_kernel": core["linear_1/w"]}
        return {**kernels, "bias": bias}
    size = weight.shape[-1] // 4
    if len(weight) <= size:
        raise ValueError(
            f"from_haiku: {name}/linear/w has shape {weight.shape}, want [D + H, 4H] "
            f"with H={size}"
        )
    weight = _arrays.reordered(weight, _LSTM, "ifgo")
    parts = _arrays.split(bias, _LSTM)
    parts["f"] = parts["f"] + 1
    return {
        "kernel": weight[:-size],
        "recurrent_kernel": weight[-size:],
        "bias": _arrays.join([parts[gate] for gate in "ifgo"]),
    }


def to_haiku(
    weights: Weights, names: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Convert weights to the parameters of Haiku's recurrent cores.

    Args:
        weights: weights in one direction, of a cell that Haiku has.
        names: names of the cores, lowest layer first; None for the names that Haiku
            gives, such as "lstm", "lstm_1" and so on.

    Returns:
        Arrays by module and name. One is subtracted from the bias of an LSTM's forget
        gate, because Haiku adds it in every step.

    Raises:
        TypeError: for anything else than `Weights`, such as a layer.
        ValueError: if Haiku has no such cell, for two directions, or if the numbers of
            names and layers differ.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> lstm = scanrnn.nnx.LSTM(3, 5, rngs=nnx.Rngs(0))
        >>> params = scanrnn.interop.to_haiku(scanrnn.interop.Weights.of(lstm))
        >>> params["lstm/linear"]["w"].shape
        (8, 20)
    """
    weights = with_zero_biases("to_haiku", weights)
    kind = _kinds.check(weights, "haiku", _KINDS)
    _kinds.one_direction(weights, "haiku")
    if names is None:
        first = _MODULES[kind]
        names = [first, *(f"{first}_{k}" for k in range(1, weights.num_layers))]
    if len(names) != weights.num_layers:
        raise ValueError(
            f"to_haiku: got {len(names)} names for {weights.num_layers} layers; "
            "give one for each"
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
