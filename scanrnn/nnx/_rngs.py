"""The random streams of a layer: checks, and keys drawn from them."""

from typing import Any

import jax
from flax import nnx


def params_stream(name: str, rngs: Any) -> nnx.RngStream:
    """The stream of a constructor's `rngs` that draws the weights.

    Args:
        name: the class that is made, for the error message.
        rngs: what was given.
    """
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(
            f"{name}: rngs must be an nnx.Rngs, got {rngs!r}; give rngs=nnx.Rngs(0)"
        )
    return stream(name, rngs, "params", "the weights")


def stream(where: str, rngs: nnx.Rngs, name: str, use: str) -> nnx.RngStream:
    """The stream of this name, or the default stream.

    Args:
        where: the class that draws, for the error message.
        rngs: the streams.
        name: name of the stream.
        use: what it draws, for the error message.

    Raises:
        ValueError: if there is neither.
    """
    if name not in rngs and "default" not in rngs:
        raise ValueError(
            f"{where}: rngs has no stream {name!r}, which draws {use}; it has "
            f"{list(rngs)}. Give nnx.Rngs({name}=0), or nnx.Rngs(0) for all"
        )
    return rngs[name]


def check_rngs(where: str, rngs: Any) -> None:
    """Raise TypeError unless `rngs` is None, an `nnx.Rngs` or an `nnx.RngStream`."""
    if rngs is not None and not isinstance(rngs, nnx.Rngs | nnx.RngStream):
        raise TypeError(
            f"{where}: rngs must be None, an nnx.Rngs or an nnx.RngStream, got "
            f"{rngs!r}; try nnx.Rngs(0)"
        )


def noise_key(where: str, rngs: nnx.Rngs | nnx.RngStream | None) -> jax.Array:
    """Draw the key of dropout and of the noise of cells."""
    if rngs is None:
        raise ValueError(
            f"{where}: rngs is None, but there is dropout or noise to draw; give the "
            "call rngs=nnx.Rngs(dropout=0), or deterministic=True, or call "
            "model.eval()"
        )
    if isinstance(rngs, nnx.Rngs):
        rngs = stream(where, rngs, "dropout", "dropout and the noise of cells")
    return rngs()


def step_keys(
    name: str, rngs: nnx.Rngs | nnx.RngStream | None
) -> tuple[jax.Array, jax.Array]:
    """The key of the noise of one step, and that of the noise of a whole sequence."""
    if rngs is None:
        raise ValueError(
            f"{name}: rngs is None, but there is noise to draw; give the call "
            "rngs=nnx.Rngs(dropout=0), or deterministic=True, or call model.eval(). A "
            "loop of Flax gives none: there is scanrnn.nnx.RNN(RNNCell(cell, ...))"
        )
    own = noise_key(name, rngs)
    if not isinstance(rngs, nnx.Rngs) or "recurrent_dropout" not in rngs:
        return own, own
    stream = rngs["recurrent_dropout"]
    # The key that this stream would draw next. It is not counted, so all steps see it.
    return own, jax.random.fold_in(stream.key[...], stream.count[...])


def carry_draw(where: str, rngs: nnx.Rngs | nnx.RngStream | None, init: Any) -> Any:
    """A function of (shape, dtype) that draws an array of a carry."""
    if rngs is None:
        raise ValueError(
            f"{where}: rngs is None, but carry_init draws from them; give "
            "initialize_carry rngs=nnx.Rngs(0)"
        )
    if isinstance(rngs, nnx.Rngs):
        rngs = stream(where, rngs, "carry", "the initial carry")
    draws = rngs
    return lambda shape, dtype: init(draws(), shape, dtype)
