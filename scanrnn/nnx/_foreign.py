"""Run Flax's own cells in our layer, also those with state besides their weights."""

import inspect
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn import layers
from scanrnn.nnx import _rngs
from scanrnn.nnx._cell import RNNCell, runs_as_ours
from scanrnn.nnx._flax_cells import FlaxCell

_OPTIONS = (
    *("in_features", "hidden_features", "num_layers", "bidirectional", "residual"),
    *("highway", "dropout", "param_dtype", "carry_dtype", "wavefront"),
)


def check(
    rnn: Any, scheme: Any, initializers: dict[str, Any], metadata: dict[str, Any]
) -> None:
    """Raise ValueError if `rnn` was given options that its Flax cell has already."""
    given = {name: getattr(rnn, name) for name in _OPTIONS} | {"scheme": scheme}
    given |= {f"{family}_init": value for family, value in initializers.items()}
    given |= {f"{family}_metadata": value for family, value in metadata.items()}
    layers.check_foreign(rnn.cell, given)


def checked_axes(state_axes: Mapping[Any, Any] | None) -> tuple[tuple[Any, Any], ...]:
    """Pairs of a filter of states and `nnx.Carry` or None, as in `RNN`."""
    axes = ((..., nnx.Carry),) if state_axes is None else tuple(state_axes.items())
    for what, axis in axes:
        if axis is not nnx.Carry and axis is not None:
            raise ValueError(
                f"RNN: state_axes has {axis!r} for {what!r}, want nnx.Carry or None; "
                "make a value with a time axis an input of the layer"
            )
    return axes


def run(
    rnn: Any, inputs: jax.Array, call: layers.Call, deterministic: bool, rngs: Any
) -> Any:
    """Run a layer of a Flax cell, and return what its call returns.

    The state of the cell is updated.

    Args:
        rnn: the layer.
        inputs: the inputs of the call.
        call: the other arguments of the call.
        deterministic: whether a cell of ours draws no noise.
        rngs: draws the initial carry, and the noise of a cell of ours.
    """
    cell = rnn.cell
    spec = layers.Spec(unroll=rnn.unroll, implementation=rnn.implementation)
    moves = [axis is nnx.Carry for _, axis in rnn.state_axes]

    def run_cells(xs, spans):
        # Of the cell's own carry, only the shapes are needed if it is given.
        known = call.initial_carry is not None and spans.starts is None
        draws = None if known else rngs
        first, fresh = layers.first_carries(
            cell,
            call.initial_carry,
            xs,
            spans,
            lambda x: _initial_carry(cell, x, draws),
        )
        noise = _Noise.of(cell, xs, deterministic, rngs)
        # Split only now: a cell may draw its carry from a stream of its own.
        graphdef, params, streams, kept = _split(cell, rnn)
        now, later = _forked(streams)

        def step(state, carry, inputs):
            x, key = inputs
            moved = iter(state)
            states = [next(moved) if m else k for m, k in zip(moves, kept, strict=True)]
            # New variables, so that a step may write to them.
            own = nnx.merge(graphdef, *_copied((params, now, *states)))
            carry, y = own(carry, x, **noise.options(key))
            return list(itertools.compress(_split(own, rnn)[3], moves)), carry, y

        state = list(itertools.compress(kept, moves))
        state, out = layers.run_foreign(
            spec, step, state, first, fresh, (xs, noise.keys), spans, call
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


def changing(rnn: Any, carry: Any, x: Any) -> list[str]:
    """Names of the states that each step of a Flax cell changes for the next one.

    Its carry is none of them, and neither are weights, whose changes are dropped.

    Args:
        rnn: the layer. Its cell draws no noise, if it is ours.
        carry: the carry before a step.
        x: the input of a step, `[*batch, ...]`, or its type.
    """
    cell = rnn.cell
    if not isinstance(cell, nnx.Module) or runs_as_ours(cell):
        return []
    moves = [axis is nnx.Carry for _, axis in rnn.state_axes]
    graphdef, *fixed, kept = _split(cell, rnn)
    leaves, structure = jax.tree.flatten(kept)
    options = _Noise.of(cell, x, True, None).options(None)

    def step(leaves, carry, x):
        own = nnx.merge(graphdef, *_copied((*fixed, *structure.unflatten(leaves))))
        own(carry, x, **options)
        return jax.tree.leaves(_split(own, rnn)[3])

    made = jax.make_jaxpr(step)(leaves, carry, x).jaxpr
    changed = [a is not b for a, b in zip(made.invars, made.outvars, strict=False)]
    paths = [
        (path, moved)
        for state, moved in zip(kept, moves, strict=True)
        for path, _ in jax.tree.leaves_with_path(state)
    ]
    return [
        jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
        for (path, moved), change in zip(paths, changed, strict=True)
        if moved and change
    ]


class _Noise(NamedTuple):
    """How the steps of a cell of ours get their noise.

    Attributes:
        deterministic: whether they have none; None for a cell that is not ours, or
            whose call does not take it.
        keys: a key for each step, or None.
        shared: the key of the noise that all steps share, or None.
    """

    deterministic: bool | None
    keys: jax.Array | None = None
    shared: jax.Array | None = None

    @classmethod
    def of(cls, cell, xs, deterministic, rngs):
        """Draw the keys, if there is noise to draw."""
        takes = inspect.signature(type(cell).__call__).parameters
        if not isinstance(cell, RNNCell | FlaxCell) or "deterministic" not in takes:
            return cls(None)
        ours = not deterministic and cell.cell is not None
        if not (ours and layers.is_noisy(*cell.stack[0][0], xs)):
            return cls(True)
        key, shared = jax.random.split(_rngs.noise_key("RNN", rngs))
        return cls(False, jax.random.split(key, xs.shape[0]), shared)

    def options(self, key):
        """The arguments of the call of a step with this key."""
        if self.deterministic is None:
            return {}
        if key is None or self.shared is None:
            return {"deterministic": True}
        own = nnx.Rngs(dropout=key, recurrent_dropout=self.shared)
        return {"deterministic": False, "rngs": own}


def _copied(states):
    return jax.tree.map(lambda leaf: leaf, states)


def _split(cell, rnn):
    """Graph, weights, the random streams that all steps share, and other states."""
    streams = nnx.All(nnx.RngState, rnn.broadcast_rngs)
    filters = [what for what, _ in rnn.state_axes]
    graphdef, params, fixed, *kept = nnx.split(cell, nnx.Param, streams, *filters)
    return graphdef, params, fixed, kept


def _forked(streams):
    """The random streams for the steps of this call, and their state after it."""
    now = dict(nnx.to_flat_state(streams))
    later = dict(now)
    for path, key in nnx.to_flat_state(streams):
        if path[-1] == "key":
            at = (*path[:-1], "count")
            count = now[at][...]
            # The same key that Flax draws.
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
        rngs: draws the carry, as for `flax.nnx.RNN`; None for the same one at every
            call.
    """
    if isinstance(rngs, nnx.Rngs):
        known = "carry" in rngs or "default" in rngs
        rngs = rngs["carry"].fork() if known else None
    # The stream is made here, because the layer must not keep one.
    return cell.initialize_carry(x.shape, nnx.Rngs(0) if rngs is None else rngs)
