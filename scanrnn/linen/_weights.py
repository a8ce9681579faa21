"""The weights of a layer as Linen parameters, with what is said of their sharding."""

import jax
from flax import linen as nn

from scanrnn import layers


def declare(module: nn.Module, name: str, place: layers.Place) -> dict[str, jax.Array]:
    """Make or read the parameters of a layer in one direction, by name.

    Args:
        module: whose parameters they are, in a dict of this name.
        name: of the dict.
        place: the cell, and its sizes.
    """
    return module.param(name, _draw, place, module)  # pyright: ignore


def _draw(key, place, module):
    """The parameters, boxed where they are made; read, only their shapes matter."""
    given = {family: getattr(module, f"{family}_init") for family in layers.FAMILIES}
    params, boxes = layers.draw(
        place, key, module.param_dtype, module.scheme, given, _opened
    )
    if not module.is_initializing():
        return params
    return {
        name: boxes[layers.family(name)].replace_boxed(value)
        if layers.family(name) in boxes
        else value
        for name, value in params.items()
    }


def _opened(value):
    if not isinstance(value, nn.meta.AxisMetadata):
        return value, None
    # A box would pin the sharding of each gate; what counts is the whole's.
    plain = isinstance(value, nn.Partitioned)
    return (value.value if plain else value.unbox()), value
