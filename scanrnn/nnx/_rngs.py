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
