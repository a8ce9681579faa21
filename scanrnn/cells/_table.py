"""The table of a cell's parameters, and how they are drawn from it."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.cells import _checks, _precision, _schemes


class Param(NamedTuple):
    """One line of the table.

    Attributes:
        shape: shape of the array.
        start: "kernel", "recurrent_kernel" or "bias" for the scheme's initializer of
            that name; a number for a constant; or a function of (key, shape, dtype).
        gates: names of the equal blocks of the last axis; each is drawn separately.
        stacked: number of leading axes that stack matrices; each is drawn separately.
    """

    shape: tuple[int, ...]
    start: str | float | Callable = 0.0
    gates: tuple[str, ...] = ()
    stacked: int = 0


def with_biases(use_bias, table, *biases):
    """The table; without the entries of these names if `use_bias` is False."""
    left_out = () if use_bias else biases
    return {name: param for name, param in table.items() if name not in left_out}


def draw(name, table, key, hidden_features, dtype, gate_biases, keeps, scheme, given):
    """Draw the parameters of a cell.

    All are drawn in float32 or wider and then cast, because JAX has no QR decomposition
    in half precision.

    Args:
        name: name of the cell, for error messages.
        table: the `Param`s by name.
        key: PRNG key.
        hidden_features: H.
        dtype: dtype of the parameters.
        gate_biases: by gate, the number added to its bias; None for the number of the
            scheme.
        keeps: by gate, 1.0 if it keeps the carry, -1.0 if it lets new values in.
        scheme: name of a scheme, or a function of H that makes one.
        given: initializers in place of the scheme's: `kernel_init` and so on.

    Returns:
        The parameters by name.
    """
    scheme = _schemes.find(name, scheme)(hidden_features).replaced(name, given)
    biases = {
        gate: scheme.forget_bias if value is None else value
        for gate, value in gate_biases.items()
    }
    wide = _precision.widest(dtype)
    keys = jax.random.split(key, len(table))
    params = {
        entry: _drawn(name, param, key, wide, scheme)
        for key, (entry, param) in zip(keys, table.items(), strict=True)
    }
    # The biases of the gates are the first of these that the cell has. The last is the
    # shift of a norm of the sum, for cells that have no other bias.
    found = [b for b in ("gate_bias", "bias", "norm_bias") if b in table]
    gates = {gate for bias in found[:1] for gate in table[bias].gates}
    if not found and any(gate_biases.values()):
        raise ValueError(
            f"{name}: this cell has no bias of gates (its norm has shifts, or "
            "use_bias=False), so forget_bias cannot apply; leave forget_bias=None"
        )
    if scheme.longest is not None and gates.isdisjoint(keeps):
        raise ValueError(
            f"{name}: this cell has no gate with a bias that keeps the carry or lets "
            "new values in, so chrono cannot apply; take a scheme by its name"
        )
    for name in found[:1]:
        params[name] += _offset(table[name], biases, wide)
        key = jax.random.fold_in(key, 1)
        params[name] = scheme.finished(params[name], name, table, key, keeps)
    return {name: value.astype(dtype) for name, value in params.items()}


def _drawn(where, param, key, dtype, scheme):
    """One parameter: its blocks are drawn separately and concatenated."""
    if not isinstance(param.start, str | Callable):
        return jnp.full(param.shape, param.start, dtype)
    init = getattr(scheme, param.start) if isinstance(param.start, str) else param.start
    alike = param.start == "bias" or not scheme.gate_by_gate
    gates = 1 if alike else max(1, len(param.gates))
    stack, (*inner, last) = param.shape[: param.stacked], param.shape[param.stacked :]
    size = (*inner, last // gates)
    keys = iter(jax.random.split(key, gates * max(1, _product(stack))))

    def block():
        found = init(next(keys), size, dtype)
        if jnp.shape(found) != size:
            raise ValueError(
                f"{where}: {param.start}_init returned an array of shape "
                f"{jnp.shape(found)} when it was asked for {size}; return that shape"
            )
        return found

    matrices = [
        jnp.concatenate([block() for _ in range(gates)], axis=-1)
        for _ in itertools.product(*map(range, stack))
    ]
    return jnp.stack(matrices).reshape(param.shape)


def _product(sizes):
    product = 1
    for size in sizes:
        product *= size
    return product


def _offset(bias, biases, dtype):
    """The array to add to `bias`: one number for each gate."""
    offset = jnp.array([biases.get(gate, 0.0) for gate in bias.gates] or [0.0], dtype)
    return jnp.repeat(offset, bias.shape[-1] // len(offset))


def check_init(name, key, in_features, hidden_features, dtype):
    """Raise unless parameters of these sizes and this dtype can be drawn."""
    _checks.check_key(name, key)
    _checks.check_size(name, "in_features", in_features)
    _checks.check_size(name, "hidden_features", hidden_features)
    _checks.check_floating(name, "dtype", dtype)
