"""Sum half-precision numbers in float32, and round the result once.

Matrix products accumulate in the same way. A bfloat16 sum of a thousand terms would
lose every digit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.functions import reread
from scanrnn.planner.ir.graph import Graph, eval_eqn


def wide(dtype):
    """The dtype in which to sum numbers of a dtype: float32 for half precision."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype("float32") if half else dtype


def wide_type(aval):
    """The type in which to sum values of a type."""
    same = wide(aval.dtype) == aval.dtype
    return aval if same else aval.update(dtype=wide(aval.dtype), weak_type=False)


def widens(eqn) -> bool:
    """Whether an equation casts half precision to the dtype in which it is summed."""
    if eqn.primitive.name != "convert_element_type":
        return False
    half = ops.aval(eqn.invars[0]).dtype
    return wide(half) == ops.aval(eqn.outvars[0]).dtype != half


def zero_sum(aval):
    """The zero from which a sum of values of a type starts."""
    return ops.zeros(wide_type(aval))


def rounded(total, aval):
    """A value, such as a sum, cast to the dtype of a type."""
    return total if total.dtype == aval.dtype else total.astype(aval.dtype)


def in_wide_sums(f: Callable, graph: Graph, by_products: bool = False) -> Callable:
    """A function like `f` that sums half precision over axes in float32.

    Args:
      f: the function.
      graph: the graph that it transposes. Without half precision there is nothing to
        do, and no need to trace.
      by_products: whether to sum the columns of its arguments by products with ones.
    """
    types = map(ops.aval, (*graph.inputs, *(v for e in graph.eqns for v in e.outvars)))
    if not by_products and all(wide(t.dtype) == t.dtype for t in types):
        return f

    def run(*args):
        columns = jax.tree.leaves(args) if by_products else []
        return reread(f, functools.partial(_wide_sum, {}, columns))(*args)

    return run


def _wide_sum(sums, columns, eqn, values):
    """Evaluate a sum in float32. A later cast of it to float32 undoes its rounding."""
    name, made = eqn.primitive.name, eqn.outvars[0]
    if any(values[0] is array for array in columns) and _sums_columns(eqn):
        return [_column_sums(values[0])]
    if name == "convert_element_type" and not ops.is_literal(eqn.invars[0]):
        found = sums.get(eqn.invars[0])
        same = found is not None and ops.aval(made).dtype == found.dtype
        return [found] if same else None
    if name != "reduce_sum" or wide(ops.aval(made).dtype) == ops.aval(made).dtype:
        return None
    terms = lax.convert_element_type(values[0], wide(ops.aval(made).dtype))
    sums[made] = eval_eqn(eqn, [terms])[0]
    return [lax.convert_element_type(sums[made], ops.aval(made).dtype)]


def _sums_columns(eqn) -> bool:
    """Whether an equation sums over all axes but the last, not in half precision."""
    if eqn.primitive.name != "reduce_sum" or ops.aval(eqn.outvars[0]).ndim != 1:
        return False
    aval, axes = ops.aval(eqn.invars[0]), eqn.params["axes"]
    whole = wide(aval.dtype) == aval.dtype and jnp.issubdtype(aval.dtype, jnp.floating)
    return whole and aval.ndim > 1 and tuple(axes) == (*range(aval.ndim - 1),)


def _column_sums(array):
    """The sums of columns, as a row of a product with ones (all rows are equal)."""
    *lead, _ = array.shape
    # Without the barrier XLA would see the ones and turn the product into a sum.
    ones = lax.optimization_barrier(jnp.ones((8, *lead), array.dtype))
    axes = tuple(range(len(lead)))
    numbers = ((tuple(i + 1 for i in axes), axes), ((), ()))
    return lax.dot_general(ones, array, numbers, precision="highest")[0]
