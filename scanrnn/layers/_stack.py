"""Layers above each other, each in one direction or in two."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import Cell
from scanrnn.cells import highway as highway_cell
from scanrnn.layers._sequence import run, side_by_side, turn
from scanrnn.layers._spans import Spans


class Place(NamedTuple):
    """Where a layer lies in a stack: its cell, what it is given, carries and gives."""

    cell: Cell
    in_features: int
    hidden_features: int
    out_features: int


class Layer(NamedTuple):
    """A cell with its parameters, for one direction."""

    cell: Cell
    params: dict


class Stacked(NamedTuple):
    """What a stack gives, a tuple of one for each layer and direction, but for `ys`.

    Attributes:
        ys: outputs `[T, *batch, features]`.
        carries: last carries.
        all_carries: carries after every step, or None.
        initial_carries: those before the first step.
        second: whether each is of a second direction.
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
    """The layers of a stack, from below.

    Args:
        cell: of all layers, or of each.
        in_features: of the first layer.
        hidden_features: of all layers, or of each.
        num_layers: how many there are.
        bidirectional: whether a layer gives the outputs of two directions.
        highway: whether a layer with as many features in as out gets the connection.
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
        residual: False; True for wherever it fits; "gnmt" for the third layer and those
            above it, as in Wu et al., "Google's neural machine translation system",
            2016, arXiv:1609.08144.
        index: of the layer, from 0.
        features: of its input and of its output.
    """
    return features[0] == features[1] and (
        index >= 2 if residual == "gnmt" else bool(residual)
    )


def run_stack(
    layers: Sequence[Sequence[Layer]],
    xs: jax.Array,
    carries: Sequence[Sequence[Any]] | None,
    spans: Spans,
    *,
    carry_dtype: Any = None,
    residual: bool | str = False,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    reverse: bool = False,
    all_carries: bool = False,
    **scan_options: Any,
) -> Stacked:
    """Run layers above each other over a sequence.

    Args:
        layers: for every layer its directions: one, or forward and backward.
        xs: `[T, *batch, D]`, blank where steps do not count.
        carries: the first carry of each; None for the cells' own.
        spans: which steps count.
        carry_dtype: of the cells' own first carries.
        residual: see `skips`.
        dropout: probability with which a feature between two layers is zero, each step
            for itself.
        key: draws the noise of the cells and of dropout; None for neither.
        reverse: whether the first direction is backward.
        all_carries: give the carry after every step, too.
        **scan_options: of `scanrnn.scan`.
    """
    last, after, first = [], [], []
    for index, directions in enumerate(layers):
        key, layer_key, dropout_key = _split(key)
        below, outs = xs, []
        if index and dropout and dropout_key is not None:
            below = _dropped(below, dropout, dropout_key)
        # One step of the inputs, for its type. Not xs[0]: there may be no steps.
        x = jnp.sum(below, axis=0)
        for direction, (cell, params) in enumerate(directions):
            layer_key, own_key, _ = _split(layer_key)
            backward = reverse != bool(direction)
            fresh = cell.initial_carry(params, x, carry_dtype)
            begin = fresh if carries is None else carries[index][direction]
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
            _check_array(index, ys)
        if residual and skips(residual, index, (below.shape[-1], ys.shape[-1])):
            ys = below.astype(ys.dtype) + ys
        xs = ys
    second = tuple(bool(k) for directions in layers for k in range(len(directions)))
    every = tuple(after) if all_carries else None
    return Stacked(xs, tuple(last), every, tuple(first), second)


def _check_array(index, ys):
    """Raise TypeError unless what a layer gives can be added to or go into another."""
    if not isinstance(ys, jax.Array):
        raise TypeError(
            f"RNN: the cell of layer {index} gives a {type(ys).__name__}, want one "
            "array: another layer takes it, or residual adds to it"
        )


def _split(key):
    """Three keys of one, or of None."""
    return (None,) * 3 if key is None else tuple(jax.random.split(key, 3))


def _dropped(a, rate, key):
    """Every feature of every step is zero with probability `rate`; means are kept."""
    kept = jax.random.bernoulli(key, 1 - rate, a.shape)
    return jnp.where(kept, a / jnp.asarray(1 - rate, a.dtype), jnp.zeros_like(a))


def history(
    out: Stacked,
    reverse: bool,
    include_initial: bool,
    turned: bool,
    lengths: jax.Array | None,
    time_axis: int,
) -> tuple:
    """All carries of a stack, with time where the inputs have it.

    Args:
        out: of `run_stack`, with all carries.
        reverse: whether the first direction is backward.
        include_initial: whether the carries before the first step are among them.
        turned: whether they are given in the order of processing.
        lengths: of the sequences, or None.
        time_axis: of the inputs.
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
            return jnp.moveaxis(steps, 0, time_axis)

        found.append(jax.tree.map(whole, every, first))
    return tuple(found)
