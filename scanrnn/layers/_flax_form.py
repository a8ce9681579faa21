"""Cells under Flax's names: convert Flax's weights and carries to ours, and back.

Flax's module draws and names the weights. A form is a function that reads these weights
as the parameters of a cell of ours.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax.numpy as jnp

from scanrnn.cells import Cell
from scanrnn.cells._cell import param_types
from scanrnn.cells._checks import carry_hint
from scanrnn.layers._options import cell_options

Tree = Mapping[str, Mapping[str, Any]]
Form = Callable[[Tree], dict[str, Any]]

# The options of Flax's constructors that change no equation. If another option is not
# at its default, Flax's own step runs.
_HARMLESS = {
    *("self", "in_features", "hidden_features", "features", "dtype", "param_dtype"),
    *("kernel_init", "recurrent_kernel_init", "bias_init", "forget_bias_init"),
    *("activation_bias_init", "carry_init", "keep_rngs", "rngs", "kernel_metadata"),
    *("recurrent_kernel_metadata", "bias_metadata", "parent", "name", "kernel_size"),
}
# Our options for initial values, which Flax's initializers decide here.
_STARTS = ("forget_bias",)


def joined_form(
    kernel: str, recurrent_kernel: str, bias: str, candidate: str | None = None
) -> Form:
    """The form of a cell: its matrices are concatenated to those of ours.

    Args:
        kernel: names of the modules that multiply x, with spaces between them.
        recurrent_kernel: names of the modules that multiply h.
        bias: names of the modules that have the biases.
        candidate: name of the module that has the bias of U h in the candidate; "" if
            that bias is zero; None if our cell has no such bias.
    """

    def weights(tree):
        found = {
            "kernel": _side_by_side(tree[name]["kernel"] for name in kernel.split()),
            "recurrent_kernel": _side_by_side(
                tree[name]["kernel"] for name in recurrent_kernel.split()
            ),
            "bias": _side_by_side(_bias(tree[name]) for name in bias.split()),
        }
        if candidate is not None:
            matrix = found["recurrent_kernel"]
            zeros = jnp.zeros(matrix.shape[0], matrix.dtype)
            found["recurrent_bias"] = _bias(tree[candidate]) if candidate else zeros
        return found

    return weights


def conv_form(tree: Tree) -> dict[str, Any]:
    """The form of `ConvLSTMCell`, with two biases, and 1 added to its forget gate."""

    def ours(a):
        i, g, f, o = jnp.split(a, 4, axis=-1)
        return jnp.concatenate([i, f, g, o], axis=-1)

    one, other = tree["ih"], tree["hh"]
    bias = ours(_bias(one) + _bias(other))
    size = bias.shape[-1] // 4
    return {
        "kernel": ours(one["kernel"]),
        "recurrent_kernel": ours(other["kernel"]),
        "bias": bias.at[size : 2 * size].add(1),
    }


def carry_as_flax(carry: Any) -> Any:
    """Convert a carry of ours to that of Flax's cell: an array, or the pair (c, h)."""
    return carry[0] if len(carry) == 1 else carry.to_flax()


def _side_by_side(parts):
    parts = list(parts)
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def _bias(module):
    """The bias of a module, or zeros if it has none."""
    kernel = module["kernel"]
    return module.get("bias", jnp.zeros(kernel.shape[-1], kernel.dtype))


def flax_attributes(
    flax: type, make: Callable[..., Cell], form: Form, doc: str, **words: str
) -> dict[str, Any]:
    """The attributes of our class that has the name of a class of Flax.

    Args:
        flax: the class of Flax.
        make: the factory of our cell.
        form: the form of its weights.
        doc: the docstring, with places for `name`, `factory`, `carry`, `kind` and the
            names in `words`.
        **words: what takes these places.
    """
    kind = cast(Any, make()).carry_type
    words |= {"name": flax.__name__, "factory": make.__name__, "kind": kind.__name__}
    carry = "the pair (c, h)" if len(kind._fields) == 2 else "h"
    return {
        "__doc__": doc.format(carry=carry, **words),
        "_make": staticmethod(make),
        "_form": staticmethod(form),
        "_flax": flax,
        "_carry": kind,
    }


def own_cell(
    name: str,
    make: Callable[..., Cell],
    flax: Callable,
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
) -> Cell | None:
    """The cell of ours that runs the steps; None if Flax's own step runs.

    Args:
        name: name of the module.
        make: the factory of the cell.
        flax: the constructor of Flax's cell.
        theirs: the options of Flax's constructor, by name.
        ours: the options of the factory, by name.

    Raises:
        ValueError: if `ours` has a `forget_bias`, or if options of `theirs` change the
            equations and `ours` has options too.
    """
    defaults = inspect.signature(flax).parameters
    other = [
        option
        for option, value in theirs.items()
        if option not in _HARMLESS and value != defaults[option].default
    ]
    options = cell_options(make)
    given = [
        option
        for option, value in ours.items()
        if value is not options[option] and value != options[option]
    ]
    starts = [option for option in given if option in _STARTS]
    if starts:
        raise ValueError(
            f"{name}: {starts[0]} and bias_init both set the bias; drop one of them, "
            f"or use RNNCell(scanrnn.cells.{make.__name__}({starts[0]}=...), ...)"
        )
    if other and given:
        raise ValueError(
            f"{name}: {', '.join(given)} goes with the equations of Flax's {name}, but "
            f"{', '.join(other)} changes them; for both write a cell of your own, see "
            "scanrnn.cells.Cell"
        )
    if other:
        return None
    both = {option: theirs[option] for option in options if option in theirs}
    return make(**both, **ours)


def extra_weights(
    name: str,
    make: Callable[..., Cell],
    read: Mapping[str, Any],
    cell: Cell,
    sizes: tuple,
) -> list[str]:
    """Names of the parameters that a cell has in addition to those of Flax's cell.

    Args:
        name: name of the module.
        make: the factory of the cell.
        read: the parameters that the form returns.
        cell: the cell.
        sizes: its sizes, and the dtype of its parameters.

    Raises:
        ValueError: if the cell lacks a parameter of `read`, or has another shape for
            it.
    """
    wanted = param_types(cell, *sizes)
    strange = [
        key
        for key, value in read.items()
        if key not in wanted or wanted[key].shape != value.shape
    ]
    if strange:
        raise ValueError(
            f"{name}: with these options {', '.join(strange)} would have another shape "
            f"than in Flax's {name}, or not be there; take "
            f"RNNCell(scanrnn.cells.{make.__name__}(...), ...), whose weights are ours"
        )
    return [key for key in wanted if key not in read]


def carry_as_ours(name: str, kind: Any, given: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Convert a carry to that of our cell, and return the function to convert it back.

    Args:
        name: name of the module.
        kind: the NamedTuple of our cell.
        given: such a tuple, or the carry of Flax's cell: an array, or the pair (c, h).

    Returns:
        The carry of our cell, and a function that gives a carry the form of `given`.

    Raises:
        TypeError: if `given` is something else.
    """
    if isinstance(given, kind):
        return given, lambda carry: carry
    if len(kind._fields) == 1 and hasattr(given, "shape"):
        return kind(given), carry_as_flax
    if hasattr(kind, "from_flax") and type(given) is tuple and len(given) == 2:
        return kind.from_flax(given), carry_as_flax
    raise TypeError(
        f"{name}: carry must be what initialize_carry gives, or {kind.__name__}(...), "
        f"got {type(given).__name__}{carry_hint(kind, given)}"
    )
