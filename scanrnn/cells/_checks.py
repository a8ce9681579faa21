"""Checks of arguments. An error names the argument, what came and what is wanted."""

import collections.abc
import inspect
import operator

import jax
import jax.numpy as jnp


def check_option(where, name, value, allowed):
    """Raise ValueError unless `value` is one of `allowed`."""
    # Only strings are compared by ==: for an array, == gives no single bool.
    text = isinstance(value, str)
    if not any(value is option or text and value == option for option in allowed):
        wanted = ", ".join(repr(option) for option in allowed)
        raise ValueError(f"{where}: {name}={value!r} is unknown, want one of {wanted}")


def check_flag(where, name, value):
    """Raise TypeError unless `value` is True or False: any text counts as True."""
    # NumPy has booleans of its own.
    if str(getattr(value, "dtype", type(value).__name__)) != "bool":
        raise TypeError(f"{where}: {name} must be True or False, got {value!r}")
    return bool(value)


def check_use_bias(where, use_bias, **starts):
    """Check the option `use_bias`, with which some starts of biases do not fit.

    Args:
        where: name of the cell, for the message.
        use_bias: the option to check.
        **starts: by option, the number at which a bias starts; None or 0 for none.

    Returns:
        True or False.

    Raises:
        TypeError: if `use_bias` is not True or False.
        ValueError: if it is False and an option is the start of a bias.
    """
    use_bias = check_flag(where, "use_bias", use_bias)
    for name, start in starts.items():
        if start and not use_bias:
            raise ValueError(
                f"{where}: {name}={start!r} is the start of a bias, and with "
                f"use_bias=False there is none; leave out {name}, or use_bias"
            )
    return use_bias


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
        raise TypeError(f"{where}: {name} must be a number such as 0.5, got {value!r}")
    return number


def check_initializer(where, name, value):
    """Raise TypeError unless `value` can be called with a key, a shape and a dtype."""
    able = callable(value)
    if able:
        try:
            inspect.signature(value).bind("key", "shape", "dtype")
        except TypeError:
            able = False
        except ValueError:  # Python cannot tell what it takes
            able = True
    if not able:
        raise TypeError(
            f"{where}: {name} must be a function of (key, shape, dtype) such as "
            f"jax.nn.initializers.zeros, got {value!r}"
        )


def check_heads(where, hidden_features, heads):
    """Raise ValueError unless the heads share the features evenly."""
    if hidden_features % heads:
        raise ValueError(
            f"{where}: hidden_features={hidden_features} does not divide into "
            f"heads={heads}, want a multiple of it"
        )


def is_floating(dtype):
    """Whether `dtype` is a floating-point dtype that a cell can compute with.

    A float of 8 bits does not: JAX does not promote it, and it would need scales.
    """
    try:
        return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits >= 16
    except (TypeError, ValueError):  # not a dtype
        return False


def check_dtype(where, name, value):
    """Raise TypeError unless `value` is a dtype or its name; return the dtype."""
    try:
        return jnp.dtype(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{where}: {name} must be a dtype such as 'float32', got {value!r}"
        ) from None


def is_key(value):
    """Whether a value is a PRNG key, or several: typed ones, or their numbers."""
    dtype = getattr(value, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return typed or dtype == jnp.uint32


def check_key(where, key):
    """Raise TypeError unless `key` is a PRNG key: a typed one, or its numbers."""
    if not is_key(key):
        dtype = getattr(key, "dtype", None)
        got = repr(key) if dtype is None else f"an array of {dtype}"
        raise TypeError(
            f"{where}: key must be a PRNG key such as jax.random.key(0), got {got}"
        )


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
        params: the parameters to check.
        x: the input to check, `[..., D]`.
        sizes: function of params that returns (in_features, hidden_features).
        table: function of (in_features, hidden_features) that returns the wanted
            parameters.

    Returns:
        The pair (in_features, hidden_features).

    Raises:
        TypeError: if `params` is not a dict, a parameter is not floating-point, or `x`
            is complex or of 8 bits.
        ValueError: if the names or shapes of `params`, or the shape of `x`, are wrong.
    """
    if not isinstance(params, collections.abc.Mapping):
        raise TypeError(
            f"{where}: params must be the dict that init returns, got "
            f"{type(params).__name__}"
        )
    # The names may depend on the sizes, and the sizes are read from the kernel.
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
    if jnp.issubdtype(x.dtype, jnp.floating):
        check_floating(where, "x", x.dtype)
    return in_features, hidden_features


def carry_hint(kind, carry):
    """A hint for the error about a carry that is not the NamedTuple; "" for none.

    Args:
        kind: the NamedTuple that is wanted.
        carry: the carry to check.
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
        carry: the carry to check.
        kind: the NamedTuple that is wanted.
        batch: the batch axes: those of x before its features.
        shapes: the shape of each field, without the batch axes.

    Raises:
        TypeError: if the carry is of another type, or a field is not floating-point.
        ValueError: if a field has the wrong shape.
    """
    if not isinstance(carry, kind):
        fields = ", ".join(kind._fields)
        raise TypeError(
            f"{where}: carry must be {kind.__name__}({fields}), got "
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
