"""The weights of a layer as `nnx.Param`s, with their sharding metadata."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from scanrnn import layers


def draw_all(
    rnn: Any, stream: nnx.RngStream, scheme: Any, initializers: Any, metadata: Any
) -> None:
    """Check the options of a layer of `scanrnn.cells`, and draw its weights.

    Args:
        rnn: the layer.
        stream: draws one key for each layer and direction.
        scheme: the `scheme` of `Cell.init`; None for the cell's default.
        initializers: see `draw`.
        metadata: see `draw`.
    """
    names = ("cell", "in_features", "hidden_features", "num_layers")
    others = ("param_dtype", "carry_dtype", "residual", "highway", "bidirectional")
    checked = layers.check_layers(
        **{name: getattr(rnn, name) for name in (*names, *others, "dropout")}
    )
    for name, value in zip(names, checked, strict=True):
        setattr(rnn, name, value)
    rnn.carry_dtype = layers.carry_dtype(rnn.carry_dtype, rnn.param_dtype)
    places = rnn.places
    layers.warn_if_no_skip(rnn.residual, rnn.highway, places)
    for place in places:
        for weights in directions(rnn):
            key, dtype = stream(), rnn.param_dtype
            weights.append(draw(place, key, dtype, scheme, initializers, metadata))


def directions(rnn: Any) -> list[nnx.List]:
    """The weights of the forward layers, and of the backward layers if any."""
    return [rnn.layers, *([rnn.backward_layers] * rnn.bidirectional)]


def draw(
    place: layers.Place,
    key: jax.Array,
    param_dtype: Any,
    scheme: Any,
    initializers: Mapping[str, Any],
    metadata: Mapping[str, Mapping[str, Any] | None],
) -> nnx.Dict:
    """Draw the weights of a layer in one direction.

    Args:
        place: the cell, and its sizes.
        key: PRNG key.
        param_dtype: dtype of the weights.
        scheme: the `scheme` of `Cell.init`; None for the cell's default.
        initializers: an initializer for each family of weights; None for that of the
            scheme. One made by `nnx.with_partitioning` adds its metadata.
        metadata: metadata of the `nnx.Param`s, for each family. It overrides that of an
            initializer.
    """
    params, said = layers.draw(place, key, param_dtype, scheme, initializers, _opened)
    for family, own in metadata.items():
        if own is not None and not isinstance(own, Mapping):
            raise TypeError(
                f"{family}_metadata: got {own!r}, want a dict, such as "
                '{"sharding_names": (None, "model")}'
            )
    found = {
        family: {**said.get(family, {}), **(own or {})}
        for family, own in metadata.items()
    }
    families = layers.families(place, params)
    return nnx.Dict(
        {
            name: nnx.Param(value, **found.get(families[name], {}))
            for name, value in params.items()
        }
    )


def _opened(value):
    if isinstance(value, nnx.VariableMetadata):
        return value.raw_value, value.metadata
    return value, None


def values(params: nnx.Module) -> dict[str, jax.Array]:
    """The arrays of the weights of a layer, by name."""
    # `items()` fails under `nnx.tabulate`, which adds a number of its own to the items
    # and replaces this method.
    found = vars(params).items()
    return {
        name: value[...] for name, value in found if isinstance(value, nnx.Variable)
    }
