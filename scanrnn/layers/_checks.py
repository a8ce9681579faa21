"""Checks of arguments. An error names the argument, what came and what is wanted."""

import inspect
import operator
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn._scan import EXECUTORS
from scanrnn._warn import warn
from scanrnn.cells import Cell
from scanrnn.cells import _checks as _cell_checks
from scanrnn.cells._checks import check_option, check_size, is_floating
from scanrnn.cells._noise import check_rate


def check_scan_options(implementation, unroll):
    """Raise unless `scanrnn.scan` takes these; return `unroll` as a bool or int."""
    check_option("RNN", "implementation", implementation, (None, *EXECUTORS))
    if isinstance(unroll, bool):
        return unroll
    try:
        steps = operator.index(unroll)
    except TypeError:
        steps = None
    if steps is None:
        raise TypeError(f"RNN: unroll must be a bool or an int, got {unroll!r}")
    if steps < 0:
        raise ValueError(f"RNN: unroll must be at least 0, got {unroll!r}")
    return steps


# Options that are True or False, and are used only when a layer is called.
_FLAGS = ("return_carry", "time_major", "reverse", "keep_order", "zero_padding")


def check_flag(name: str, value: Any) -> None:
    """Raise TypeError unless an argument of a layer is True or False."""
    _cell_checks.check_flag("RNN", name, value)


def check_flags(layer: Any) -> None:
    """Check those options of a layer that are True or False, and its `deterministic`.

    Args:
        layer: an object with these options as attributes.
    """
    for name in ("bidirectional", "highway", "deterministic", *_FLAGS):
        check_flag(name, getattr(layer, name))
    if layer.wavefront is not None:
        check_flag("wavefront", layer.wavefront)


def is_recurrent(cell: Any, module: type) -> bool:
    """Whether `cell` is a recurrent cell: a module with `num_feature_axes`.

    Args:
        cell: any object.
        module: the class of Flax's modules; `object` for cells of all kinds.
    """
    # `hasattr` does not work: the property of Flax's base class raises an error.
    axes = inspect.getattr_static(cell, "num_feature_axes", None)
    return isinstance(cell, module) and axes is not None


def check_cell(cell: Any, flax: str) -> None:
    """Raise TypeError unless `cell` is a `scanrnn.cells.Cell`, or a list of them.

    Args:
        cell: the argument of a layer; a recurrent cell of Flax was handled before.
        flax: "nnx" or "linen": the kind of the layer.
    """
    several = isinstance(cell, list | tuple) and len(cell) > 0
    for one in cell if several else (cell,):
        if not isinstance(one, Cell):
            raise TypeError(
                "RNN: cell must be a scanrnn.cells.Cell such as scanrnn.cells.lstm(), "
                f"a list of them, or one RNNCellBase of flax.{flax} (or its like, with "
                f"num_feature_axes); got {_no_cell(one, flax)}"
            )


def _no_cell(one, flax):
    """What came in place of a cell, and what to write instead."""
    if isinstance(one, type):
        return f"the class {one.__name__}; write {one.__name__}(...)"
    if inspect.isroutine(one):
        # A factory of ours that was not called. Any other function may be a step.
        ours = (one.__module__ or "").startswith("scanrnn.cells")
        hint = f"write {one.__name__}(...)" if ours else "scanrnn.scan takes a step"
        return f"the function {one.__name__}; {hint}"
    name = type(one).__name__
    homes = {".".join(base.__module__.split(".")[:2]) for base in type(one).__mro__}
    home = next((home for home in ("flax.nnx", "flax.linen") if home in homes), None)
    if home is None:
        return repr(one)
    if not is_recurrent(one, object):
        return f"{name}, a module that is no recurrent cell"
    if home == f"flax.{flax}":
        return f"a list with {name} of {home}; make a layer of each"
    return f"{name} of {home}, for which there is scanrnn.{home[5:]}.RNN"


def check_layers(
    cell: Any,
    in_features: Any,
    hidden_features: Any,
    num_layers: Any,
    *,
    param_dtype: Any,
    carry_dtype: Any,
    residual: Any,
    highway: bool,
    bidirectional: bool,
    dropout: float,
    sized: str = "hidden_features",
) -> tuple[Any, int, Any, int]:
    """Check the arguments of a constructor of layers; the options are those of `RNN`.

    Args:
        cell: a cell, or a list with one for each layer; see `check_cell`.
        in_features: D of the first layer.
        hidden_features: an integer, or a list with one for each layer.
        num_layers: None for the length of the lists, or else 1.
        param_dtype: dtype of the weights.
        carry_dtype: dtype of the carry; None is accepted.
        residual: the residual connection.
        highway: the highway connection.
        bidirectional: whether there are two directions.
        dropout: the probability.
        sized: name of the argument `hidden_features` in the layer, for error messages.

    Returns:
        The first four, with lists as tuples and integers of NumPy as integers.
    """
    check_flag("bidirectional", bidirectional)
    check_flag("highway", highway)
    cell = tuple(cell) if isinstance(cell, list) else cell
    if isinstance(cell, tuple) and len({one.num_feature_axes for one in cell}) > 1:
        raise ValueError(
            "RNN: some cells of the list are convolutional, some are not; "
            "make a layer of each kind"
        )
    in_features = _size("in_features", in_features)
    if isinstance(hidden_features, list | tuple) and hidden_features:
        rows = enumerate(hidden_features)
        hidden_features = tuple(_size(f"{sized}[{i}]", H) for i, H in rows)
    else:
        hidden_features = _size(sized, hidden_features)
    lists = {"cell": cell, sized: hidden_features}
    lengths = {k: len(v) for k, v in lists.items() if isinstance(v, tuple)}
    if num_layers is None:
        num_layers = max(lengths.values(), default=1)
    num_layers = _size("num_layers", num_layers)
    for name, length in lengths.items():
        if length != num_layers:
            raise ValueError(
                f"RNN: {name} has {length} entries, want one for each of the "
                f"{num_layers} layers"
            )
    for name, dtype in {"param_dtype": param_dtype, "carry_dtype": carry_dtype}.items():
        if dtype is not None and not is_floating(dtype):
            raise TypeError(
                f"RNN: {name} must be a floating dtype of 16 bits or more, got "
                f"{dtype!r}"
            )
    if check_rate("RNN", "dropout", dropout) and num_layers == 1:
        warn(
            f"RNN: dropout={dropout} lies between layers, and there is one: it does "
            "nothing. For dropout of what goes into a layer or comes out of it there "
            "is scanrnn.cells.dropout(cell, input=..., output=...)",
        )
    check_option("RNN", "residual", residual, (False, True, "gnmt"))
    if highway and (bidirectional or residual):
        raise ValueError(
            "RNN: highway cannot be combined with bidirectional (its outputs are "
            "wider than the inputs) or with residual; drop one of them"
        )
    return cell, in_features, hidden_features, num_layers


# The values of options that were not given; None for all others.
_UNSAID = {
    "bidirectional": False,
    "residual": False,
    "highway": False,
    "dropout": 0.0,
    "param_dtype": jnp.float32,
}


def check_foreign(cell: Any, given: dict[str, Any]) -> None:
    """Raise ValueError for options of a layer that its Flax cell itself decides.

    Args:
        cell: the Flax cell.
        given: the options that are only for a `scanrnn.cells.Cell`, by name.
    """
    given = given | {"wavefront": given.get("wavefront") or None}
    refused = [name for name, value in given.items() if value != _UNSAID.get(name)]
    if refused:
        raise ValueError(
            f"RNN: got {', '.join(refused)} beside {type(cell).__name__}, which "
            "already has its sizes, dtypes and weights; leave them out, or give a "
            "scanrnn.cells.Cell"
        )


def _size(name: str, value: Any) -> int:
    check_size("RNN", name, value)
    return operator.index(value)


def check_call(call):
    """Raise unless the arguments of a call have the right types and fit together."""
    for name in (*_FLAGS, "return_all_carries", "include_initial"):
        check_flag(name, getattr(call, name))
    if call.include_initial and not call.return_all_carries:
        raise ValueError(
            "RNN: include_initial=True adds the carry before the first step to all "
            "carries; give return_all_carries=True too"
        )


def as_array(
    value: Any, name: str = "inputs", wanted: str = "numbers, [..., T, D],"
) -> jax.Array:
    """An argument of a layer as an array; raise TypeError or ValueError if it is none.

    Args:
        value: what was given.
        name: the name of the argument, for messages.
        wanted: what the array should hold, for messages.
    """
    try:
        return jnp.asarray(value)
    except OverflowError as error:
        raise ValueError(
            f"RNN: {name} has a number that is too large for an array of JAX"
        ) from error
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"RNN: {name} must be one array of {wanted} got {type(value).__name__}"
        ) from error


def check_inputs(inputs, in_features, feature_axes):
    """Raise ValueError unless `inputs` has a time axis and the right features."""
    want = "[T, D]" if feature_axes == 1 else f"time and {feature_axes} feature axes"
    if jnp.ndim(inputs) < feature_axes + 1:
        raise ValueError(
            f"RNN: inputs has shape {jnp.shape(inputs)}, want at least {want}; "
            "batch axes are optional, time is not"
        )
    if in_features is not None and inputs.shape[-1] != in_features:
        raise ValueError(
            f"RNN: inputs has {inputs.shape[-1]} features (shape {inputs.shape}), want "
            f"in_features={in_features} on its last axis"
        )


def check_batched(leaf: Any, axes: int) -> None:
    """Raise ValueError unless an array has its time and batch axes.

    Args:
        leaf: an array of a carry or of the outputs.
        axes: the number of time and batch axes.
    """
    if jnp.ndim(leaf) < axes:
        raise ValueError(
            f"RNN: the cell returned an array of shape {jnp.shape(leaf)} in its carry "
            f"or output, want at least {axes} axes: the time and batch axes of the "
            "inputs come first; give the array these axes in the cell"
        )
