"""Stacked layers, each in one direction or in two."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn._warn import warn
from scanrnn.cells import Cell
from scanrnn.cells import highway as highway_cell
from scanrnn.cells._placing import where
from scanrnn.layers._checks import check_batched
from scanrnn.layers._first_carry import begun, placed_as_inputs
from scanrnn.layers._sequence import run, side_by_side, turn
from scanrnn.layers._spans import Spans


class Place(NamedTuple):
    """A layer of a stack: its cell, and its numbers of features."""

    cell: Cell
    in_features: int
    hidden_features: int
    out_features: int


class Layer(NamedTuple):
    """A cell with its parameters, for one direction."""

    cell: Cell
    params: dict


class Stacked(NamedTuple):
    """The results of a stack. Each tuple has one item for each layer and direction.

    Attributes:
        ys: the outputs of the last layer, `[T, *batch, features]`.
        carries: the last carries.
        all_carries: the carries after every step, or None.
        initial_carries: the carries before the first step.
        second: whether the item belongs to the second direction of its layer.
    """

    ys: jax.Array
    carries: tuple
    all_carries: tuple | None
    initial_carries: tuple
    second: tuple[bool, ...]


def places(
    cell: Cell | Sequence[Cell],
    in_features: int,
    hidden_features: int | Sequence[int],
    num_layers: int,
    *,
    bidirectional: bool = False,
    highway: bool = False,
) -> list[Place]:
    """The layers of a stack, from the first to the last.

    Args:
        cell: one cell for all layers, or a sequence with one for each.
        in_features: D of the first layer.
        hidden_features: H of all layers, or a sequence with one for each.
        num_layers: the number of layers.
        bidirectional: whether a layer returns the outputs of two directions.
        highway: whether each layer with as many output as input features gets a highway
            connection.
    """
    found = []
    for index in range(num_layers):
        own = cell if isinstance(cell, Cell) else cell[index]
        size = hidden_features
        size = size if isinstance(size, int) else size[index]
        out = own.out_features(size) * (2 if bidirectional else 1)
        if highway and out == in_features:
            own = highway_cell(own)
        found.append(Place(own, in_features, size, out))
        in_features = out
    return found


def skips(residual: bool | str, index: int, features: tuple[int, int]) -> bool:
    """Whether the input of a layer is added to its output.

    Args:
        residual: False; True for each layer where the sizes fit; "gnmt" for those from
            the third layer on, as in Wu et al., "Google's neural machine translation
            system", 2016, arXiv:1609.08144.
        index: index of the layer, from 0.
        features: numbers of features of its input and of its output.
    """
    return features[0] == features[1] and (
        index >= 2 if residual == "gnmt" else bool(residual)
    )


def warn_if_no_skip(
    residual: bool | str, highway: bool, places: Sequence[Place]
) -> None:
    """Warn of `residual` or `highway` if no layer has the sizes for it."""
    sizes = [(place.in_features, place.out_features) for place in places]
    for name, value in (("residual", residual), ("highway", highway)):
        if value and not any(skips(value, i, pair) for i, pair in enumerate(sizes)):
            shown = ", ".join(f"{D} to {out}" for D, out in sizes)
            first = " from the third layer on" if value == "gnmt" else ""
            warn(
                f"RNN: {name}={value!r} does nothing: no layer{first} has as many "
                f"features out as in (they have {shown})",
            )


def run_stack(
    layers: Sequence[Sequence[Layer]],
    xs: jax.Array,
    carries: Sequence[Sequence[Any]] | None,
    spans: Spans,
    *,
    sizes: Sequence[int],
    carry_dtype: Any = None,
    residual: bool | str = False,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    reverse: bool = False,
    all_carries: bool = False,
    **scan_options: Any,
) -> Stacked:
    """Run stacked layers over a sequence, one after the other.

    Args:
        layers: for each layer its directions: one, or forward and backward.
        xs: the inputs `[T, *batch, D]`, zero where steps do not count.
        carries: the first carry of each layer and direction; None for the cells' own.
        spans: which steps count.
        sizes: H of each layer.
        carry_dtype: dtype of the cells' own first carries.
        residual: see `skips`. What is added is the input before dropout.
        dropout: probability with which a feature between two layers is set to zero.
            Each step has its own mask.
        key: PRNG key for the noise of the cells and for dropout; None for neither.
        reverse: whether the first direction runs from the last step to the first.
        all_carries: whether to return the carry after every step too.
        **scan_options: options of `scanrnn.scan`.

    Raises:
        TypeError: if a layer below another, or one with `residual`, returns something
            else than one array.
        ValueError: if the output of a layer below another has another width than its
            cell's `out_features` says.
    """
    last, after, first = [], [], []
    for index, directions in enumerate(layers):
        key, layer_key, dropout_key = _split(key)
        below, outs = xs, []
        if index and dropout and dropout_key is not None:
            below = _dropped(below, dropout, dropout_key)
        # One step of the inputs, for its shape and dtype; xs[0] fails if T is 0.
        x = jnp.sum(below, axis=0)
        for direction, (cell, params) in enumerate(directions):
            layer_key, own_key, _ = _split(layer_key)
            backward = reverse != bool(direction)
            fresh = cell.initial_carry(params, x, carry_dtype)
            fresh = placed_as_inputs(fresh, x, cell.num_feature_axes)
            begin = begun(None if carries is None else carries[index][direction], fresh)
            step, inputs = cell.prepare(params, below, own_key)
            carry, ys, every, _ = run(
                step,
                begin,
                inputs,
                spans,
                fresh,
                reverse=backward,
                all_carries=all_carries,
                **scan_options,
            )
            outs.append(ys)
            first.append(begin)
            last.append(carry)
            after.append(every)
        ys = outs[0] if len(outs) == 1 else jax.tree.map(side_by_side, *outs)
        if residual or index + 1 < len(layers):
            check_array(index, ys)
        if index + 1 < len(layers):
            check_width(index, directions[0].cell, sizes[index], outs[0])
        if residual and skips(residual, index, (xs.shape[-1], ys.shape[-1])):
            ys = xs.astype(ys.dtype) + ys
        xs = ys
    second = tuple(bool(k) for directions in layers for k in range(len(directions)))
    every = tuple(after) if all_carries else None
    return Stacked(xs, tuple(last), every, tuple(first), second)


def check_array(index: int, ys: Any) -> None:
    """Raise TypeError unless the output of a layer is one array."""
    if not isinstance(ys, jax.Array | jax.ShapeDtypeStruct):
        raise TypeError(
            f"RNN: the cell of layer {index} gives a {type(ys).__name__}, want one "
            "array: another layer takes it, or residual adds to it"
        )


def check_width(index: int, cell: Cell, hidden_features: int, ys: Any) -> None:
    """Raise ValueError unless a layer's output is as wide as its cell says."""
    said, came = cell.out_features(hidden_features), ys.shape[-1]
    if said != came:
        raise ValueError(
            f"RNN: step of {type(cell).__name__} gives {came} features, but its "
            f"out_features({hidden_features}) is {said}, the width that layer "
            f"{index + 1} was made for; give the cell a method out_features(self, "
            f"hidden_features) that returns {came}"
        )


def _split(key):
    """Split a key into three; None into three None."""
    return (None,) * 3 if key is None else tuple(jax.random.split(key, 3))


def _dropped(a, rate, key):
    """Set each feature of each step to zero with probability `rate`; keep the mean."""
    kept = jax.random.bernoulli(key, 1 - rate, a.shape)
    return where(kept, a / jnp.asarray(1 - rate, a.dtype), jnp.zeros_like(a))


def history(
    out: Stacked,
    reverse: bool,
    include_initial: bool,
    turned: bool,
    lengths: jax.Array | None,
    time_axis: int,
) -> tuple:
    """All carries of a stack, with the time axis of the inputs.

    Args:
        out: the result of `run_stack`, with all carries.
        reverse: whether the first direction runs from the last step to the first.
        include_initial: whether to include the carries before the first step.
        turned: whether to return them in the order in which they were computed.
        lengths: lengths of the sequences, or None.
        time_axis: the time axis of the inputs.
    """
    if turned and lengths is not None and include_initial:
        lengths = lengths + 1
    found = []
    for index, (every, first) in enumerate(
        zip(out.all_carries or (), out.initial_carries, strict=True)
    ):
        backward = reverse != out.second[index]

        def whole(steps, begin, backward=backward):
            if include_initial:
                begin = begin[None].astype(steps.dtype)
                parts = (steps, begin) if backward else (begin, steps)
                steps = jnp.concatenate(parts)
            steps = turn(steps, lengths) if turned else steps
            check_batched(steps, 1 + time_axis)
            return jnp.moveaxis(steps, 0, time_axis)

        found.append(jax.tree.map(whole, every, first))
    return tuple(found)
