"""Errors at the door of the cells: which argument, what came, what was wanted."""

import operator

import jax.numpy as jnp


def check_option(where, name, value, allowed):
    """Raise ValueError unless `value` is one of `allowed`."""
    if not any(value is option or value == option for option in allowed):
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


def check_params(where, params, x, shapes):
    """Raise unless `params` are those of a cell with these `shapes`, and fit `x`.

    Args:
        where: name of the cell, for the message.
        params: the parameters that came.
        x: the input that came, `[..., D]`.
        shapes: function of (in_features, hidden_features) to the wanted shapes.
    """
    if not isinstance(params, dict) or "recurrent_kernel" not in params:
        raise TypeError(
            f"{where}: params must be the dict that {where}(...).init returns, got "
            f"{sorted(params) if isinstance(params, dict) else type(params).__name__}"
        )
    in_features = jnp.shape(params.get("kernel"))[0] if "kernel" in params else 0
    wanted = shapes(in_features, jnp.shape(params["recurrent_kernel"])[0])
    if set(params) != set(wanted):
        raise ValueError(
            f"{where}: params has the entries {sorted(params)}, want {sorted(wanted)}; "
            "they must come from init of a cell with the same options"
        )
    for name, shape in wanted.items():
        if jnp.shape(params[name]) != shape:
            raise ValueError(
                f"{where}: params[{name!r}] has shape {jnp.shape(params[name])}, "
                f"want {shape}"
            )
    if jnp.ndim(x) < 1 or x.shape[-1] != in_features:
        raise ValueError(
            f"{where}: x has shape {jnp.shape(x)}, want (..., {in_features}): "
            f"params were initialised with in_features={in_features}"
        )


def check_carry(where, carry, kind, shape):
    """Raise unless `carry` is a `kind` whose fields all have this `shape`."""
    if not isinstance(carry, kind):
        fields = ", ".join(kind._fields)
        raise TypeError(
            f"{where}: carry must be a {kind.__name__}({fields}), got "
            f"{type(carry).__name__}; initial_carry makes one"
        )
    for name, value in zip(kind._fields, carry, strict=True):
        if jnp.shape(value) != shape:
            raise ValueError(
                f"{where}: carry.{name} has shape {jnp.shape(value)}, want {shape}: "
                "the batch axes of x, then hidden_features"
            )
