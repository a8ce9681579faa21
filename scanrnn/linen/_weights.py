"""The weights of a layer as Linen parameters, with their sharding metadata."""

from collections.abc import Callable
from typing import Any

import jax
from flax import errors
from flax import linen as nn

from scanrnn import layers
from scanrnn.cells._cell import param_types


def declare(module: nn.Module, name: str, place: layers.Place) -> dict[str, jax.Array]:
    """Make or read the parameters of a layer in one direction, by name.

    Args:
        module: the module that has the parameters.
        name: name of the dict that holds them in the module.
        place: the cell, and its sizes.

    Raises:
        ValueError: if a parameter that is read has the wrong shape.
    """
    try:
        return module.param(name, _draw, place, module)  # pyright: ignore
    except errors.ScopeParamShapeError as error:
        raise ValueError(_misfit(module, name, place)) from error


def _misfit(module, name, place):
    """The error message for weights of other shapes."""
    wanted = param_types(place.cell, place.in_features, place.hidden_features)
    came = nn.meta.unbox(module.get_variable("params", name))
    wrong = [
        f"{key!r} of shape {came[key].shape}, want {like.shape}"
        for key, like in wanted.items()
        if key in came and came[key].shape != like.shape
    ]
    wrong += [f"no {key!r}" for key in wanted if key not in came]
    wrong += [f"an unknown {key!r}" for key in came if key not in wanted]
    return (
        f"{type(module).__name__}: params[{name!r}] has {'; '.join(wrong)}, for inputs "
        f"of {place.in_features} features and features={place.hidden_features}; were "
        "they made for others, or with other options?"
    )


def _draw(key, place, module):
    """Draw the parameters; boxed with their metadata, if the module is initialized."""
    given = {family: getattr(module, f"{family}_init") for family in layers.FAMILIES}
    params, boxes = layers.draw(
        place, key, module.param_dtype, module.scheme, given, _opened
    )
    if not module.is_initializing():
        return params
    families = layers.families(place, params)
    return {
        name: boxes[families[name]].replace_boxed(value)
        if families[name] in boxes
        else value
        for name, value in params.items()
    }


def _opened(value):
    if not isinstance(value, nn.meta.AxisMetadata):
        return value, None
    # A box would fix the sharding of each gate; that of the whole matrix counts.
    plain = isinstance(value, nn.Partitioned)
    return (value.value if plain else value.unbox()), value


def step_keys(
    module: Any, deterministic: bool | None
) -> Callable[[], tuple[jax.Array, jax.Array]] | None:
    """A function that draws two keys: for the noise of one step and of the sequence.

    Args:
        module: the module of a cell.
        deterministic: the argument of the call; None for the field of the module.

    Returns:
        The function, or None if the call draws no noise.
    """
    if deterministic is None:
        deterministic = module.deterministic
    # Nobody uses the outputs of `init`, so it needs no noise.
    if deterministic or module.is_initializing():
        return None

    def keys():
        own = noise_key(module, deterministic)
        if not module.has_rng("recurrent_dropout"):
            return own, own
        # The key of the stream itself, without its counter: all steps see the same.
        return own, module.scope.rngs["recurrent_dropout"].as_jax_rng()

    return keys


def noise_key(module: Any, deterministic: bool | None) -> jax.Array:
    """Draw the key of dropout and of the noise of cells."""
    name = type(module).__name__
    if deterministic is None:
        raise ValueError(
            f"{name}: deterministic is None, but there is dropout or noise to draw; "
            "give the module or the call deterministic=False in training, True in "
            "evaluation"
        )
    if not (module.has_rng("dropout") or module.has_rng("params")):
        message = (
            f"{name}: there is dropout or noise to draw, and no stream for it; give "
            'apply rngs={"dropout": jax.random.key(0)}, or deterministic=True'
        )
        if isinstance(module, nn.RNNCellBase):
            # Loops of Flax, and our RNN like them, hide streams not named to them.
            message += (
                ". An RNN around the cell passes the stream on only with split_rngs="
                '{"params": False, "dropout": False}, or True for new noise each step'
            )
        raise ValueError(message)
    return module.make_rng("dropout")


def carry_draw(
    key: jax.Array, init: Any, place: layers.Place, params: Any, shape: tuple[int, ...]
) -> Callable[[tuple[int, ...], Any], jax.Array]:
    """A function that draws the arrays of a carry, each with its own key, as in Flax.

    Args:
        key: PRNG key for all arrays.
        init: function of (key, shape, dtype).
        place: the cell, and its sizes.
        params: the parameters of the cell; their values are not used.
        shape: shape of the input of one step.
    """
    like = jax.eval_shape(
        lambda: layers.first_carry(place.cell, params, shape, None, None)
    )
    count = len(jax.tree.leaves(like))
    keys = iter([key] if count == 1 else jax.random.split(key, count))
    return lambda shape, dtype: init(next(keys), shape, dtype)
