"""Arrays of any library, NumPy's and traced ones alike, and the gates in them."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
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


def array(value: Any, what: str) -> Any:
    """The value as an array of NumPy; what is JAX's, traced or not, stays as it is.

    Args:
        value: an array of whatever library.
        what: what to call it in a message, the function before it.

    Raises:
        ValueError: if it is no array of real floating numbers.
    """
    try:
        found = plain(value)
    except Exception as error:  # what a library raises here is its own affair
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
    """The value as an array of NumPy, of any dtype; what is JAX's stays as it is."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    if hasattr(value, "detach"):  # a tensor of torch, which is not imported for it
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy's has to be asked for
            return value.float().numpy().astype(jnp.bfloat16)
        return value.numpy()
    if hasattr(value, "get_value") or hasattr(value, "value"):  # a Flax or Keras one
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
    """Arrays by name: all that there must be, no others, of shapes that fit.

    Args:
        where: name of the function, for messages.
        found: arrays of whatever library.
        axes: of every array, such as "4H D". A letter is a size, the same one wherever
            it stands; "..." is any axes, the same ones wherever they stand.
        optional: those that need not be there.
        sizes: of the letters that are known before.
        called: what to call an array in a message.

    Raises:
        ValueError: which names the array.
    """
    if more := sorted(set(found) - set(axes)):
        raise ValueError(
            f"{where}: {', '.join(map(called, more))} is no weight of such a cell, "
            f"which has {', '.join(map(called, sorted(axes)))}"
        )
    if lacking := sorted(set(axes) - set(found) - set(optional)):
        raise ValueError(
            f"{where}: there is no {', '.join(map(called, lacking))}, which such a "
            "cell has"
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
    """Whether a shape has these axes; sizes that it says are known from then on."""
    if axes[0] == "...":
        count = len(shape) - len(axes) + 1
        if known.setdefault("...", shape[: max(count, 0)]) != shape[: max(count, 0)]:
            return False
        shape, axes = shape[max(count, 0) :], axes[1:]
    if len(shape) != len(axes):
        return False
    pairs = [(_AXIS.findall(a)[0], size) for a, size in zip(axes, shape, strict=True)]
    # A letter alone says more than a multiple of it.
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
