"""Where a layer's random numbers come from."""

from typing import Any

import jax
from flax import nnx


def params_stream(rngs: Any) -> nnx.RngStream:
    """The stream that draws the weights of a constructor's `rngs`."""
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"RNN: rngs must be an nnx.Rngs, got {rngs!r}; try nnx.Rngs(0)")
    return stream(rngs, "params", "the weights")


def stream(rngs: nnx.Rngs, name: str, use: str) -> nnx.RngStream:
    """One stream of some, or the default one.

    Args:
        rngs: the streams.
        name: of the one that is wanted.
        use: what it draws.
    """
    if name not in rngs and "default" not in rngs:
        raise ValueError(
            f"RNN: rngs has no stream {name!r}, which draws {use}; it has "
            f"{list(rngs)}. Give nnx.Rngs({name}=0), or nnx.Rngs(0) for all"
        )
    return rngs[name]


def check_rngs(rngs: Any) -> None:
    """Raise unless a call can draw from these."""
    if rngs is not None and not isinstance(rngs, nnx.Rngs | nnx.RngStream):
        raise TypeError(
            f"RNN: rngs must be None, an nnx.Rngs or an nnx.RngStream, got {rngs!r}; "
            "try nnx.Rngs(0)"
        )


def noise_key(rngs: nnx.Rngs | nnx.RngStream | None) -> jax.Array:
    """The key of dropout and of the noise of cells."""
    if rngs is None:
        raise ValueError(
            "RNN: rngs is None, but there is dropout or noise to draw; give the call "
            "rngs=nnx.Rngs(dropout=0), or deterministic=True, or call model.eval()"
        )
    if isinstance(rngs, nnx.Rngs):
        rngs = stream(rngs, "dropout", "dropout and the noise of cells")
    return rngs()


def step_keys(
    name: str, rngs: nnx.Rngs | nnx.RngStream | None
) -> tuple[jax.Array, jax.Array]:
    """The keys of the noise of one step, and of that of the whole sequence."""
    if rngs is None:
        raise ValueError(
            f"{name}: rngs is None, but there is noise to draw; give the call "
            "rngs=nnx.Rngs(dropout=0), or deterministic=True, or call model.eval(). A "
            "loop of Flax gives none: there is scanrnn.nnx.RNN(RNNCell(cell, ...))"
        )
    own = noise_key(rngs)
    if not isinstance(rngs, nnx.Rngs) or "recurrent_dropout" not in rngs:
        return own, own
    stream = rngs["recurrent_dropout"]
    # The key that it would draw next: every step sees the same.
    return own, jax.random.fold_in(stream.key[...], stream.count[...])


def carry_draw(rngs: nnx.Rngs | nnx.RngStream | None, init: Any) -> Any:
    """A function of a shape and a dtype that draws an array of a carry."""
    if rngs is None:
        raise ValueError(
            "RNNCell: rngs is None, but carry_init draws from them; give "
            "initialize_carry rngs=nnx.Rngs(0)"
        )
    if isinstance(rngs, nnx.Rngs):
        rngs = stream(rngs, "carry", "the initial carry")
    draws = rngs
    return lambda shape, dtype: init(draws(), shape, dtype)
