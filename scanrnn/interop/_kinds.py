"""Kinds of cells: which of our cells other libraries have."""

import dataclasses
from typing import Any

from scanrnn import cells
from scanrnn.cells._wrapper import Wrapper
from scanrnn.interop import _arrays

# For each kind: our cell, and the letters of its gates in our order.
KINDS = {
    "elman": (cells.elman(), "h"),
    "elman-relu": (cells.elman("relu"), "h"),
    "lstm": (cells.lstm(), "ifgo"),
    "gru": (cells.gru(), "rzn"),
    "gru-cho2014": (cells.gru(dialect="cho2014"), "rzn"),
    "gru-haiku": (cells.gru(dialect="haiku"), "rzn"),
    "mgu": (cells.mgu(), "fn"),
    "conv_lstm": (cells.conv_lstm(kernel_size=1), "ifgo"),
}
# Kinds that are not written as their name and "()".
_WRITTEN = {
    "elman-relu": 'elman("relu")',
    "lstm-p": "lstm(projection=P)",
    "gru-cho2014": 'gru(dialect="cho2014")',
    "gru-haiku": 'gru(dialect="haiku")',
}
# Options that change no equation in evaluation, or only sizes and starting values.
_NEUTRAL = {
    *("dtype", "kernel_size", "mask_per_gate"),
    *("projection", "recurrent_dropout", "use_bias"),
    *("forget_bias", "carry_bias", "transfer_bias", "longest"),
    *("r_min", "r_max", "max_phase"),
}


_TRAINING = tuple(
    type(make(cells.elman()))
    for make in (cells.dropout, lambda cell: cells.weight_drop(cell, 0.5))
)


def gates(kind: str) -> str:
    """The letters of the gates of a kind, in our order."""
    return KINDS[kind.removesuffix("-p")][1]


def kind_of(cell: cells.Cell) -> str | None:
    """The kind of a cell; None for one that no library has.

    An LSTM with a projection is "lstm-p".
    """
    cell = bare(cell)
    for name, (known, _) in KINDS.items():
        if _equations(cell) == _equations(known):
            return name + ("-p" if getattr(cell, "projection", None) else "")
    return None


def alike(one: cells.Cell, other: cells.Cell) -> bool:
    """Whether two cells have the same equations in evaluation."""
    return _equations(bare(one)) == _equations(bare(other))


def bare(cell: Any) -> Any:
    """The cell without wrappers that only change training."""
    while isinstance(cell, Wrapper) and isinstance(cell, _TRAINING):
        cell = cell.inner
    return cell


def _equations(cell):
    """The type and the options that determine the equations of a cell."""
    fields = dataclasses.fields(cell) if dataclasses.is_dataclass(cell) else ()
    values = {f.name: getattr(cell, f.name) for f in fields if f.name not in _NEUTRAL}
    return type(cell), [(name, _option(value)) for name, value in values.items()]


def _option(value):
    """What an option says of the equations."""
    if isinstance(value, cells.Multiplicative):
        return type(value)  # its numbers are starting values
    return _equations(bare(value)) if isinstance(value, cells.Cell) else value


def check(weights, library: str, known: tuple[str, ...]) -> str:
    """The kind of the cell of some weights, which the library must have.

    Args:
        weights: `Weights`.
        library: the name of the library, for the message.
        known: the kinds that the library has.

    Raises:
        ValueError: if the library has no such cell.
    """
    kind = kind_of(weights.cell)
    if kind not in known:
        theirs = ", ".join(_WRITTEN.get(name, f"{name}()") for name in known)
        raise ValueError(
            f"to_{library}: {library} has no cell with the equations of "
            f"{called(weights.cell)}; it has {theirs} (see scanrnn.interop). To "
            "keep these weights, save them with save_safetensors, or export the layer "
            "with scanrnn.serving"
        )
    return kind


def called(cell: Any) -> str:
    """A cell as one writes it: its name, and the options that are not the default."""
    if not (hasattr(cell, "name") and hasattr(cell, "__dataclass_fields__")):
        return f"the cell {type(cell).__name__}"
    fields, no_default = dataclasses.fields(cell), dataclasses.MISSING
    defaults = {f.name: f.default for f in fields if f.default is not no_default}
    # Some options become records when the cell is made.
    plain = vars(dataclasses.replace(cell, **defaults))
    options = ", ".join(
        f"{name}={value!r}"
        for name, value in vars(cell).items()
        if name not in defaults or value != plain[name]
    )
    return f"{cell.name}({options})"


def with_zero_biases(weights):
    """The same weights with zeros for the biases that `use_bias=False` leaves out."""
    if getattr(weights.cell, "use_bias", True) or kind_of(weights.cell) is None:
        return weights  # a cell that no library has is refused as it is
    cell = dataclasses.replace(weights.cell, use_bias=True)
    layers = [[_filled(cell, params) for params in ones] for ones in weights.layers]
    return dataclasses.replace(weights, cell=cell, layers=layers)


def _filled(cell, params):
    table = cell.table(*cell.sizes(params))
    missing = {name: table[name].shape[-1] for name in set(table) - set(params)}
    kernel = params["kernel"]
    return {**params, **{n: _arrays.zeros(kernel, size) for n, size in missing.items()}}


def one_direction(weights, library: str) -> None:
    """Raise ValueError for two directions, which the library does not have."""
    if weights.bidirectional:
        raise ValueError(
            f"to_{library}: the layers are bidirectional, and it has no such layer; "
            "give it each direction by itself: Weights(cell, [(forward,)])"
        )
