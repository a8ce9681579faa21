"""Draw the weights of a layer, and collect the metadata of their initializers."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn.cells._checks import check_initializer
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._wrapper import Wrapper
from scanrnn.layers._stack import Place

FAMILIES = ("recurrent_kernel", "kernel", "bias")


def by_family(kernel: Any, recurrent_kernel: Any, bias: Any) -> dict[str, Any]:
    """A dict from each family of parameters to the value given for it."""
    values = recurrent_kernel, kernel, bias
    return dict(zip(FAMILIES, values, strict=True))


def families(place: Place, names: Iterable[str]) -> dict[str, str]:
    """The family of each parameter, which decides its initializer and its sharding.

    Args:
        place: the cell, and its sizes.
        names: the names of its parameters.

    Returns:
        By name one of `FAMILIES`: the initializer that draws the parameter, or else
        the end of its name. It is "" for others, such as gains and peepholes.
    """
    cell, sizes = place.cell, (place.in_features, place.hidden_features)
    found = {name: next(filter(name.endswith, FAMILIES), "") for name in names}
    while isinstance(cell, Wrapper):
        cell = cell.inner
    table = cell.table(*sizes) if isinstance(cell, FramedCell) else {}
    for name, param in table.items():
        if isinstance(param.start, str):
            found[name] = param.start
    return found


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
        param_dtype: dtype of the weights.
        scheme: the `scheme` of `Cell.init`; None for the cell's default.
        initializers: an initializer for each family; None for that of the scheme.
        opened: splits the result of an initializer into an array and its metadata; the
            latter may be None.

    Returns:
        The weights by name, and the metadata by family.

    Raises:
        TypeError: if the cell draws something else than a flat dict of arrays.
    """
    said = {}

    def plain(family, init):
        if not callable(init):
            return init
        check_initializer("RNN", f"{family}_init", init)

        def drawn(key, shape, dtype):
            value, more = opened(init(key, shape, dtype))
            if not hasattr(value, "shape"):
                raise TypeError(
                    f"{family}_init: returned {type(value).__name__}, want an array; "
                    "an initializer such as lecun_normal must be called: lecun_normal()"
                )
            if more is not None:
                said[family] = more
            return value

        return drawn

    options = {
        f"{family}_init": plain(family, init)
        for family, init in initializers.items()
        if init is not None
    }
    if scheme is not None:
        options["scheme"] = scheme
    sizes = place.in_features, place.hidden_features
    _check_method(place.cell, "init", _INIT, options)
    _check_method(place.cell, "initial_carry", ("params", "x", "dtype"))
    params = place.cell.init(key, *sizes, param_dtype, **options)
    flat = isinstance(params, dict) and jax.tree_util.all_leaves(params.values())
    if not flat:
        raise TypeError(
            f"RNN: init of {type(place.cell).__name__} returned shapes "
            f"{jax.tree.map(jnp.shape, params)}, want a flat dict of arrays by name"
        )
    return params, said


_INIT = "key", "in_features", "hidden_features", "dtype"


def _check_method(cell, name, arguments, options=()):
    """Raise TypeError unless a method takes these arguments, and options by name."""
    takes = inspect.signature(getattr(cell, name))
    try:
        takes.bind(*arguments, **dict.fromkeys(options))
    except TypeError:
        wanted = ", ".join([*arguments, *(f"{option}=" for option in options)])
        out = f", or leave {', '.join(options)} out" if options else ""
        raise TypeError(
            f"RNN: {name} of {type(cell).__name__} takes {takes}, but a layer calls it "
            f"with ({wanted}); let it take these{out}"
        ) from None
