"""The weights of a layer as they are drawn, and what their initializers say of them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from scanrnn.layers._stack import Place

FAMILIES = ("recurrent_kernel", "kernel", "bias")


def by_family(kernel: Any, recurrent_kernel: Any, bias: Any) -> dict[str, Any]:
    """The sharding metadata of each family of parameters."""
    values = recurrent_kernel, kernel, bias
    return dict(zip(FAMILIES, values, strict=True))


def family(name: str) -> str:
    """Which initializer and which sharding are for a parameter of this name.

    Returns:
        One of `FAMILIES`, or "": gains and peepholes are alike in all layers.
    """
    return next((found for found in FAMILIES if name.endswith(found)), "")


def draw(
    place: Place,
    key: jax.Array,
    param_dtype: Any,
    scheme: Any,
    initializers: Mapping[str, Any],
    opened: Callable[[Any], tuple[jax.Array, Any]],
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Draw the weights of a layer in one direction.

    Args:
        place: the cell, and its sizes.
        key: PRNG key.
        param_dtype: of the weights.
        scheme: of `Cell.init`; None for the cell's own choice, as each of the next.
        initializers: by family.
        opened: takes what an initializer gives apart: an array, and what else it says
            of its family, or None.

    Returns:
        The weights by name, and by family what was said of it.
    """
    said = {}

    def plain(family, init):
        def drawn(key, shape, dtype):
            value, more = opened(init(key, shape, dtype))
            if more is not None:
                said[family] = more
            return value

        return drawn if callable(init) else init

    options = {
        f"{family}_init": plain(family, init)
        for family, init in initializers.items()
        if init is not None
    }
    if scheme is not None:
        options["scheme"] = scheme
    sizes = place.in_features, place.hidden_features
    return place.cell.init(key, *sizes, param_dtype, **options), said
