"""One step of a cell: what the NNX and the Linen modules for it share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn.cells import Cell
from scanrnn.cells._cell import param_types
from scanrnn.cells._checks import check_size, is_floating
from scanrnn.layers._stack import Place


def check_step_cell(
    where: str, cell: Any, sizes: Mapping[str, Any], dtypes: Any
) -> None:
    """Check the arguments of a module for one step.

    Args:
        where: name of the module, for error messages.
        cell: the cell.
        sizes: the sizes, by name.
        dtypes: the dtypes, by name; None is accepted.

    Raises:
        TypeError: if `cell` is not a `Cell`, a size not an int, or a dtype not a
            floating-point dtype of 16 bits or more.
        ValueError: if a size is less than 1.
    """
    if not isinstance(cell, Cell):
        kind = getattr(cell, "__name__", type(cell).__name__)
        raise TypeError(
            f"{where}: cell must be a scanrnn.cells.Cell such as scanrnn.cells.lstm(), "
            f"got {kind}"
        )
    for name, size in sizes.items():
        check_size(where, name, size)
    for name, dtype in dtypes.items():
        if dtype is not None and not is_floating(dtype):
            raise TypeError(
                f"{where}: {name} must be a floating dtype of 16 bits or more, got "
                f"{dtype!r}"
            )


def is_noisy(cell: Cell, params: Any, xs: Any) -> bool:
    """Whether a cell draws random numbers in training.

    Args:
        cell: the cell.
        params: its parameters.
        xs: inputs `[T, *batch, ...]`; their values are not used.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(cell.noise, key, params, xs) is not None


def one_step(
    cell: Cell,
    params: Any,
    carry: Any,
    x: jax.Array,
    keys: Callable[[], tuple[jax.Array, jax.Array]] | None,
) -> tuple[Any, jax.Array]:
    """Make one step of a cell, with its noise.

    Args:
        cell: the cell.
        params: its parameters.
        carry: the carry before the step.
        x: the input, `[*batch, ...]`.
        keys: returns two PRNG keys: for the noise of this step, and for the noise that
            is the same in the whole sequence. It is called only if the cell draws
            noise. None for no noise.

    Returns:
        The carry after the step, and the output.
    """
    if keys is None or not is_noisy(cell, params, x[None]):
        return cell.step(params, carry, x)
    own, shared = keys()
    step, _ = cell.prepare(params, x[None], shared)
    _, rows = cell.prepare(params, x[None], own)
    return step(carry, jax.tree.map(lambda row: row[0], rows))


def step_shape(where: str, given: Any) -> tuple[int, ...]:
    """The shape of an input of a step, as a tuple.

    Args:
        where: name of the module, for error messages.
        given: the argument `input_shape`.

    Raises:
        TypeError: if it is no shape, or has no axis.
    """
    if getattr(given, "ndim", None) == 1 and given.dtype.kind in "iu":
        given = given.tolist()
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise TypeError(
            f"{where}: input_shape must be the shape of an input, (..., D), such as "
            f"x.shape; got {given!r}"
        )
    return tuple(given)


def first_carry(
    cell: Cell,
    params: Any,
    input_shape: tuple[int, ...],
    dtype: Any,
    draw: Callable[[tuple[int, ...], Any], jax.Array] | None,
) -> Any:
    """The carry before the first step.

    Args:
        cell: the cell.
        params: its parameters.
        input_shape: shape of one step of the input, `[*batch, ...]`.
        dtype: dtype of the carry.
        draw: function of (shape, dtype) that draws an array of the carry; None for the
            cell's own carry.
    """
    carry = cell.initial_carry(params, jnp.zeros(input_shape, dtype), dtype)
    if draw is None:
        return carry
    return jax.tree.map(lambda leaf: draw(leaf.shape, leaf.dtype), carry)


def filled_params(place: Place, dtype: Any, value: float) -> Any:
    """Parameters with the right shapes and dtypes, whose numbers are all `value`.

    Args:
        place: the cell, and its sizes.
        dtype: dtype of the parameters.
        value: the number.
    """
    sizes = place.in_features, place.hidden_features
    like = param_types(place.cell, *sizes, dtype)
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, value, leaf.dtype), like)


def carry_dtype(given: Any, param_dtype: Any) -> Any:
    """The dtype of a carry: `given`, or else float32, or wider if the weights are."""
    if given is not None:
        return given
    # Python's `float` means float64; JAX alone would give way to float32.
    return jnp.promote_types(jnp.float32, jax.dtypes.canonicalize_dtype(param_dtype))
