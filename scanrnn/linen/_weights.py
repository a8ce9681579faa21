"""The weights of a layer as Linen parameters, with what is said of their sharding."""

from typing import Any

import jax
from flax import linen as nn

from scanrnn.layers import Place, family


def declare(module: nn.Module, name: str, place: Place) -> dict[str, jax.Array]:
    """Make or read the parameters of a layer in one direction, by name.

    Args:
        module: whose parameters they are, in a dict of this name.
        name: of the dict.
        place: the cell, and its sizes.
    """
    return module.param(name, _draw, place, module)  # pyright: ignore


def _draw(key, place, module):
    """The parameters, boxed where they are made; read, only their shapes matter."""
    boxes = {}
    names = ("kernel", "recurrent_kernel", "bias")
    given = {f"{name}_init": getattr(module, f"{name}_init") for name in names}
    plain = {
        name: _without_box(init, boxes, name.removesuffix("_init"))
        for name, init in given.items()
        if init is not None
    }
    if module.scheme is not None:
        plain["scheme"] = module.scheme
    params = place.cell.init(
        key, place.in_features, place.hidden_features, module.param_dtype, **plain
    )
    if not module.is_initializing():
        return params
    return {
        name: boxes[family(name)].replace_boxed(value)
        if family(name) in boxes
        else value
        for name, value in params.items()
    }


def _without_box(init, boxes, family):
    """The initializer, giving arrays; the box that it gives is put into `boxes`."""
    if not callable(init):
        return init

    def plain(key, shape, dtype):
        value: Any = init(key, shape, dtype)
        if isinstance(value, nn.meta.AxisMetadata):
            boxes[family] = value
            # A box would pin the sharding of each gate; what counts is the whole's.
            plain = isinstance(value, nn.Partitioned)
            return value.value if plain else value.unbox()
        return value

    return plain
