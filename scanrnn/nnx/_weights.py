"""The weights of a layer as `nnx.Param`s, with what is said of their sharding."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from scanrnn.layers import Place, family


def draw(
    place: Place,
    key: Any,
    param_dtype: Any,
    initializers: Mapping[str, Any],
    metadata: Mapping[str, Mapping[str, Any] | None],
) -> nnx.Dict:
    """Draw the weights of a layer in one direction.

    Args:
        place: the cell, and its sizes.
        key: PRNG key.
        param_dtype: of the weights.
        initializers: of `Cell.init`; None for the scheme's own. One that
            `nnx.with_partitioning` made says its metadata for its family of weights.
        metadata: of the `nnx.Param`s of each family, "kernel_metadata" and so on.
    """
    found = {name: dict(value or {}) for name, value in metadata.items()}
    plain = {
        name: _without_metadata(init, found, name.replace("_init", "_metadata"))
        for name, init in initializers.items()
        if init is not None
    }
    params = place.cell.init(
        key, place.in_features, place.hidden_features, param_dtype, **plain
    )
    return nnx.Dict(
        {
            name: nnx.Param(value, **found[f"{family(name)}_metadata"])
            if family(name)
            else nnx.Param(value)
            for name, value in params.items()
        }
    )


def _without_metadata(init, found, family):
    """The initializer, giving arrays; what else it gives is put into `found`."""
    if not callable(init):
        return init

    def plain(key, shape, dtype):
        value = init(key, shape, dtype)
        if isinstance(value, nnx.VariableMetadata):
            found[family] = {**value.metadata, **found[family]}
            return value.raw_value
        return value

    return plain


def values(params: nnx.Dict) -> dict[str, jax.Array]:
    """The arrays of the weights of a layer, by name."""
    return {name: param[...] for name, param in params.items()}
