"""Errors at the door of the cells: which argument, what came, what was wanted."""

import collections.abc
import operator

import jax.numpy as jnp


def check_option(where, name, value, allowed):
    """Raise ValueError unless `value` is one of `allowed`."""
    # Only a string is compared: whether an array is equal has no one answer.
    text = isinstance(value, str)
    if not any(value is option or text and value == option for option in allowed):
        wanted = ", ".join(repr(option) for option in allowed)
        raise ValueError(f"{where}: {name}={value!r} is unknown, want one of {wanted}")


def check_size(where, name, value):
    """Raise unless `value` is a positive int."""
    try:
        size = operator.index(value)
    except TypeError:
        size = None
    if size is None or isinstance(value, bool):
        raise TypeError(f"{where}: {name} must be an int, got {value!r}")
    if size < 1:
        raise ValueError(f"{where}: {name} must be at least 1, got {value!r}")


def check_number(where, name, value):
    """Raise TypeError unless `value` is a real number; return it as a float."""
    try:
        number = None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise TypeError(f"{where}: {name} must be a number such as 1.0, got {value!r}")
    return number


def check_initializer(where, name, value):
    """Raise TypeError unless `value` can be called to draw weights."""
    if not callable(value):
        raise TypeError(
            f"{where}: {name} must be a function of (key, shape, dtype) such as "
            f"jax.nn.initializers.zeros, got {value!r}"
        )


def is_floating(dtype):
    """Whether `dtype` is a floating-point dtype that a cell can compute with.

    An 8-bit float promotes to nothing; it would need scales, which a cell has not.
    """
    try:
        return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits >= 16
    except (TypeError, ValueError):  # it is no dtype at all
        return False


def check_floating(where, name, dtype):
    """Raise TypeError unless `dtype` is a floating-point dtype of 16 bits or more."""
    if not is_floating(dtype):
        raise TypeError(
            f"{where}: {name} has dtype {dtype}, want a floating-point dtype of 16 "
            "bits or more"
        )


def check_params(where, params, x, sizes, table):
    """Raise unless `params` are those of a cell with this `table`, and fit `x`.

    Args:
        where: name of the cell, for the message.
        params: the parameters that came.
        x: the input that came, `[..., D]`.
        sizes: function of params to (in_features, hidden_features).
        table: function of (in_features, hidden_features) to the wanted parameters.

    Returns:
        The sizes.
    """
    if not isinstance(params, collections.abc.Mapping):
        raise TypeError(
            f"{where}: params must be the dict that init returns, got "
            f"{type(params).__name__}"
        )
    # Which there are may depend on the sizes, and those are read from the kernel.
    in_features, hidden_features = sizes(params) if "kernel" in params else (1, 1)
    names = table(in_features, hidden_features)
    if set(params) != set(names):
        raise ValueError(
            f"{where}: params has the entries {sorted(params)}, want {sorted(names)}; "
            "they must come from init of a cell with the same options"
        )
    for name, wanted in names.items():
        if params[name].shape != wanted.shape:
            raise ValueError(
                f"{where}: params[{name!r}] has shape {params[name].shape}, want "
                f"{wanted.shape}; they must come from init"
            )
        check_floating(where, f"params[{name!r}]", params[name].dtype)
    if x.shape[-1:] != (in_features,):
        raise ValueError(
            f"{where}: x has shape {x.shape}, want (..., {in_features}): "
            f"params were initialised with in_features={in_features}"
        )
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{where}: x has dtype {x.dtype}, want a real one")
    return in_features, hidden_features


def carry_hint(kind, carry):
    """What to add to an error where a carry without names came: its order.

    Args:
        kind: the NamedTuple that is wanted.
        carry: what came.
    """
    fields = kind._fields
    if len(fields) == 1 and hasattr(carry, "shape"):
        return f". A plain array is {kind.__name__}(carry)"
    if type(carry) not in (tuple, list) or len(carry) != len(fields):
        return ""
    order, name = ", ".join(fields), kind.__name__
    hint = f". A plain {type(carry).__name__} in the order ({order}) is {name}(*carry)"
    if hasattr(kind, "from_flax"):
        theirs = ", ".join(reversed(fields))
        hint += f"; one of Flax, ({theirs}), is {name}.from_flax(carry)"
    return hint


def check_carry(where, carry, kind, batch, shapes):
    """Raise unless `carry` is a `kind` whose fields have these shapes.

    Args:
        where: name of the cell, for the message.
        carry: the carry that came.
        kind: the NamedTuple that is wanted.
        batch: the axes before the features, those of x.
        shapes: of every field, without the batch.
    """
    if not isinstance(carry, kind):
        fields = ", ".join(kind._fields)
        raise TypeError(
            f"{where}: carry must be a {kind.__name__}({fields}), got "
            f"{type(carry).__name__}; initial_carry makes one{carry_hint(kind, carry)}"
        )
    for name, value in zip(kind._fields, carry, strict=True):
        shape = (*batch, *shapes[name])
        if value.shape != shape:
            raise ValueError(
                f"{where}: carry.{name} has shape {value.shape}, want {shape}: "
                "the batch axes of x, then the features"
            )
        check_floating(where, f"carry.{name}", value.dtype)
