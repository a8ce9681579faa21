"""Flax's own cells inside our layer, those that keep more than weights included."""

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn import layers
from scanrnn.nnx import _rngs

_OPTIONS = (
    *("in_features", "hidden_features", "num_layers", "bidirectional", "residual"),
    *("highway", "dropout", "param_dtype", "carry_dtype", "wavefront"),
)


def check(
    rnn: Any, scheme: Any, initializers: dict[str, Any], metadata: dict[str, Any]
) -> None:
    """Raise unless `rnn` was given a Flax cell, and nothing about its weights."""
    given = {name: getattr(rnn, name) for name in _OPTIONS} | {"scheme": scheme}
    given |= {f"{family}_init": value for family, value in initializers.items()}
    given |= {f"{family}_metadata": value for family, value in metadata.items()}
    layers.check_foreign(rnn.cell, given)


def checked_axes(state_axes: Mapping[Any, Any] | None) -> tuple[tuple[Any, Any], ...]:
    """What becomes of a cell's state from step to step: pairs of a filter and that."""
    axes = ((..., nnx.Carry),) if state_axes is None else tuple(state_axes.items())
    for what, axis in axes:
        if axis is not nnx.Carry and axis is not None:
            raise ValueError(
                f"RNN: state_axes has {axis!r} for {what!r}, want nnx.Carry or None; "
                "what has an axis of time belongs to the inputs"
            )
    return axes


def run(rnn: Any, inputs: jax.Array, call: layers.Call, rngs: Any) -> Any:
    """What a layer of a Flax cell returns; a state that the cell keeps goes on in it.

    Args:
        rnn: the layer.
        inputs: as they came.
        call: the arguments.
        rngs: what draws the initial carry.
    """
    cell = rnn.cell
    spec = layers.Spec(unroll=rnn.unroll, implementation=rnn.implementation)
    moves = [axis is nnx.Carry for _, axis in rnn.state_axes]

    def run_cells(xs, spans):
        first, fresh = layers.first_carries(
            cell, call.initial_carry, xs, spans, lambda x: _initial_carry(cell, x, rngs)
        )
        # After that: a cell may draw its carry from a stream of its own.
        graphdef, params, streams, kept = _split(cell, rnn)
        now, later = _forked(streams)

        def step(state, carry, x):
            moved = iter(state)
            states = [next(moved) if m else k for m, k in zip(moves, kept, strict=True)]
            # Variables made anew, so that a step may write to them.
            own = nnx.merge(graphdef, *_copied((params, now, *states)))
            carry, y = own(carry, x)
            return list(itertools.compress(_split(own, rnn)[3], moves)), carry, y

        state = list(itertools.compress(kept, moves))
        state, out = layers.run_foreign(
            spec, step, state, first, fresh, xs, spans, call
        )
        nnx.update(cell, later, *state)
        return out

    size = getattr(cell, "in_features", None)
    return layers.call_layers(
        spec,
        inputs,
        call,
        run_cells,
        in_features=size if cell.num_feature_axes == 1 else None,
        feature_axes=cell.num_feature_axes,
        dtype=None,
    )


def _copied(states):
    return jax.tree.map(lambda leaf: leaf, states)


def _split(cell, rnn):
    """Graph, weights, the random streams that stand still, and all other states."""
    streams = nnx.All(nnx.RngState, rnn.broadcast_rngs)
    filters = [what for what, _ in rnn.state_axes]
    graphdef, params, fixed, *kept = nnx.split(cell, nnx.Param, streams, *filters)
    return graphdef, params, fixed, kept


def _forked(streams):
    """Random streams for the steps of this call, and what they are after it."""
    now = dict(nnx.to_flat_state(streams))
    later = dict(now)
    for path, key in nnx.to_flat_state(streams):
        if path[-1] == "key":
            at = (*path[:-1], "count")
            count = now[at][...]
            # The very key that Flax would draw.
            drawn = jax.random.fold_in(key[...], count)
            now[path] = key.replace(jax.random.split(drawn, 1)[0])
            now[at] = now[at].replace(jnp.zeros_like(count))
            later[at] = later[at].replace(count + 1)
    return nnx.from_flat_state(now), nnx.from_flat_state(later)


def _initial_carry(cell, x, rngs):
    """The cell's own initial carry.

    Args:
        cell: a Flax cell.
        x: one time step of the input, batch axes first.
        rngs: what draws it, as for `flax.nnx.RNN`; None for the same at every call.
    """
    if isinstance(rngs, nnx.Rngs):
        rngs = _rngs.stream(rngs, "carry", "the initial carry").fork()
    # The stream is made here, so that the layer keeps none.
    return cell.initialize_carry(x.shape, nnx.Rngs(0) if rngs is None else rngs)
