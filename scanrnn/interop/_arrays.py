"""Arrays of any library, NumPy's and traced ones alike, and the gates in them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def reader(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose error for arrays of no sense is always a ValueError.

    What NumPy says to them depends on where they are wrong.
    """

    @functools.wraps(function)
    def read(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(
                f"{function.__name__}: these are not the weights of a recurrent layer, "
                f"or not all of them ({type(error).__name__}: {error}); see the names "
                "and shapes in its documentation"
            ) from error

    return read


def array(value: Any) -> Any:
    """The value as a NumPy array; what is JAX's, traced or not, stays as it is."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    if hasattr(value, "detach"):  # a tensor of torch, which is not imported for it
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy's has to be asked for
            return value.float().numpy().astype(jnp.bfloat16)
        return value.numpy()
    if hasattr(value, "get_value") or hasattr(value, "value"):  # a Flax or Keras one
        value = value.get_value() if hasattr(value, "get_value") else value.value
        return array(value)
    return np.asarray(value)


def module(*arrays: Any) -> Any:
    """`numpy`, or `jax.numpy` if one of the arrays is JAX's."""
    return np if all(isinstance(a, np.ndarray) for a in arrays) else jnp


def join(arrays: Sequence[Any], axis: int = -1) -> Any:
    """The arrays behind each other."""
    return module(*arrays).concatenate(arrays, axis=axis)


def split(a: Any, gates: str) -> dict[str, Any]:
    """The gates along the last axis, by name."""
    parts = module(a).split(a, len(gates), axis=-1)
    return dict(zip(gates, parts, strict=True))


def reordered(a: Any, have: str, want: str) -> Any:
    """The gates along the last axis, in another order.

    Args:
        a: `[..., G * H]`.
        have: a letter for each gate, in their order.
        want: the same letters in another order.
    """
    if have == want:
        return a
    parts = split(a, have)
    return join([parts[gate] for gate in want])


def zeros(like: Any, size: int | None = None) -> Any:
    """A vector of zeros as long as the last axis of an array, or of this size."""
    return np.zeros(like.shape[-1] if size is None else size, like.dtype)
