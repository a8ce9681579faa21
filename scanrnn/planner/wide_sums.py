"""Sums of half-precision numbers: accumulated in float32, and rounded once.

So products accumulate, too. A bfloat16 sum of a thousand terms loses every digit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.planner import ops
from scanrnn.planner.graph import eval_eqn, reread


def wide(dtype):
    """The dtype in which numbers of a dtype are summed."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype("float32") if half else dtype


def wide_type(aval):
    """The type in which values of a type are summed."""
    same = wide(aval.dtype) == aval.dtype
    return aval if same else aval.update(dtype=wide(aval.dtype), weak_type=False)


def zero_sum(aval):
    """What a sum of values of a type starts from."""
    return ops.zeros(wide_type(aval))


def rounded(total, aval):
    """A value as one of a type: a sum as what was summed."""
    return total if total.dtype == aval.dtype else total.astype(aval.dtype)


def in_wide_sums(f: Callable, by_products: bool = False) -> Callable:
    """A function with every sum over axes in float32, and so what is added to it.

    Args:
      f: the function.
      by_products: whether sums of the columns of its arguments are products with ones.
    """

    def run(*args):
        columns = jax.tree.leaves(args) if by_products else []
        return reread(f, functools.partial(_wide_sum, {}, columns))(*args)

    return run


def _wide_sum(sums, columns, eqn, values):
    """A sum in float32; a cast of one to float32 is the sum before it was rounded."""
    name, made = eqn.primitive.name, eqn.outvars[0]
    if any(values[0] is array for array in columns) and _sums_columns(eqn):
        return [_column_sums(values[0])]
    if name == "convert_element_type" and not ops.is_literal(eqn.invars[0]):
        found = sums.get(eqn.invars[0])
        same = found is not None and made.aval.dtype == found.dtype
        return [found] if same else None
    if name != "reduce_sum" or wide(made.aval.dtype) == made.aval.dtype:
        return None
    terms = lax.convert_element_type(values[0], wide(made.aval.dtype))
    sums[made] = eval_eqn(eqn, [terms])[0]
    return [lax.convert_element_type(sums[made], made.aval.dtype)]


def _sums_columns(eqn) -> bool:
    """Whether an equation sums over all axes but the last, and without rounding."""
    if eqn.primitive.name != "reduce_sum" or eqn.outvars[0].aval.ndim != 1:
        return False
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    whole = wide(aval.dtype) == aval.dtype and jnp.issubdtype(aval.dtype, jnp.floating)
    return whole and aval.ndim > 1 and tuple(axes) == (*range(aval.ndim - 1),)


def _column_sums(array):
    """These sums: the rows of a product, all of them alike."""
    *lead, _ = array.shape
    # XLA would make a sum of a product with what it knows to be ones.
    ones = lax.optimization_barrier(jnp.ones((8, *lead), array.dtype))
    axes = tuple(range(len(lead)))
    numbers = ((tuple(i + 1 for i in axes), axes), ((), ()))
    return lax.dot_general(ones, array, numbers, precision="highest")[0]
