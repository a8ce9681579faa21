"""Arrays of any library, also NumPy arrays and traced ones, and the gates in them."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def reader(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function, so that it always raises ValueError for wrong arrays.

    The error that NumPy raises depends on what is wrong with them. An argument that
    the function does not have is a TypeError, as for any function.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def read(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(signature.parameters)
            message = f"{function.__name__}: {error}; its arguments are {names}"
            raise TypeError(message) from None
        try:
            return function(*args, **kwargs)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(
                f"{function.__name__}: these are not the weights of a recurrent layer, "
                f"or not all of them ({type(error).__name__}: {error}); see the names "
                "and shapes in its documentation"
            ) from error

    return read


def array(value: Any, what: str) -> Any:
    """The value as a NumPy array; a JAX array, traced or not, stays as it is.

    Args:
        value: an array of any library.
        what: the name of the function and of the array, for messages.

    Raises:
        ValueError: if it is not an array of real floating-point numbers.
    """
    try:
        found = plain(value)
    except Exception as error:  # each library raises errors of its own
        raise ValueError(
            f"{what} is a {type(value).__name__} that is no array ({error})"
        ) from error
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(
            f"{what} is a {type(value).__name__} of dtype {found.dtype}, want an array "
            "of floating numbers"
        )
    return found


def plain(value: Any) -> Any:
    """The value as a NumPy array of any dtype; a JAX array stays as it is."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    if hasattr(value, "detach"):  # a torch tensor; torch itself is not imported
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # torch cannot convert it
            return value.float().numpy().astype(jnp.bfloat16)
        return value.numpy()
    if hasattr(value, "get_value") or hasattr(value, "value"):  # of Flax or Keras
        return plain(value.get_value() if hasattr(value, "get_value") else value.value)
    return np.asarray(value)


_AXIS = re.compile(r"(\d*)([A-Z]?)")


def fit(
    where: str,
    found: Mapping[str, Any],
    axes: Mapping[str, str],
    *,
    optional: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    called: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Check arrays: none is missing, none is unknown, and all shapes fit.

    Args:
        where: name of the public function, for messages.
        found: arrays of any library, by name.
        axes: the axes of each array, such as "4H D". A letter is a size, and "..." is
            any number of axes. Both have one value for all arrays.
        optional: names of arrays that may be missing.
        sizes: values of letters that are known already.
        called: makes the name in messages from the name of an array.

    Returns:
        The arrays of `found` by name, as NumPy or JAX arrays.

    Raises:
        ValueError: if an array does not fit; the message names it.
    """
    if more := sorted(set(found) - set(axes)):
        raise ValueError(
            f"{where}: {', '.join(map(called, more))} is not a weight of such a cell, "
            f"which has {', '.join(map(called, sorted(axes)))}; remove the others"
        )
    if lacking := sorted(set(axes) - set(found) - set(optional)):
        raise ValueError(
            f"{where}: there is no {', '.join(map(called, lacking))}, which such a "
            "cell has; add it, or check which cell the weights are of"
        )
    known: dict[str, Any] = dict(sizes or {})
    arrays = {}
    for name, wanted in axes.items():
        if name not in found:
            continue
        arrays[name] = array(found[name], f"{where}: {called(name)}")
        before = {letter: size for letter, size in known.items() if letter in wanted}
        if not _bound(arrays[name].shape, wanted.split(), known):
            said = ", ".join(f"{k}={v}" for k, v in before.items())
            raise ValueError(
                f"{where}: {called(name)} has shape {arrays[name].shape}, want "
                f"[{', '.join(wanted.split())}]" + (f" with {said}" if said else "")
            )
    return arrays


def _bound(shape, axes, known):
    """Whether a shape has these axes. New sizes are added to `known`."""
    if axes[0] == "...":
        count = len(shape) - len(axes) + 1
        if known.setdefault("...", shape[: max(count, 0)]) != shape[: max(count, 0)]:
            return False
        shape, axes = shape[max(count, 0) :], axes[1:]
    if len(shape) != len(axes):
        return False
    pairs = [(_AXIS.findall(a)[0], size) for a, size in zip(axes, shape, strict=True)]
    # First the letters without a factor: they give the size directly.
    for (number, letter), size in sorted(pairs, key=lambda pair: pair[0][0] != ""):
        factor = int(number or 1)
        if letter:
            factor *= known.setdefault(letter, size // factor)
        if size != factor:
            return False
    return True


def module(*arrays: Any) -> Any:
    """`numpy`, or `jax.numpy` if one of the arrays is JAX's."""
    return np if all(isinstance(a, np.ndarray) for a in arrays) else jnp


def join(arrays: Sequence[Any], axis: int = -1) -> Any:
    """Concatenate the arrays along one axis."""
    return module(*arrays).concatenate(arrays, axis=axis)


def split(a: Any, gates: str) -> dict[str, Any]:
    """The gates, which lie along the last axis, by their letters."""
    parts = module(a).split(a, len(gates), axis=-1)
    return dict(zip(gates, parts, strict=True))


def reordered(a: Any, have: str, want: str) -> Any:
    """Put the gates, which lie along the last axis, into another order.

    Args:
        a: `[..., G * H]`, with G gates.
        have: a letter for each gate, in the order of `a`.
        want: the same letters in the new order.
    """
    if have == want:
        return a
    parts = split(a, have)
    return join([parts[gate] for gate in want])


def zeros(like: Any, size: int | None = None) -> Any:
    """Zeros in the dtype of `like`: `[size]`; None for the size of its last axis."""
    return np.zeros(like.shape[-1] if size is None else size, like.dtype)
