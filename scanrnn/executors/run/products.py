"""How products are lowered on one device, where rules prefer a form.

The gradient of `x @ W` contracts over T and B. `Rules` may join the two axes, and
transpose the left operand of a weight gradient `x.T @ dz`. A batch that is split among
devices keeps its axis.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from scanrnn.executors.run.ordering import in_branch
from scanrnn.planner.ir import compat
from scanrnn.planner.ir.gemm import ROWS, dot, gemm_p
from scanrnn.planner.rules import Rules

# Dimension numbers of `a.T @ b`.
_COLUMNS = (((0,), (0,)), ((), ()))


def lower_products(platform: str, rules: Rules) -> None:
    """Lower products as some rules prefer, on one device of a platform."""
    compat.lower_alone(gemm_p, platform, functools.partial(_preferred, rules), dot)


def copy_transposed(matrix):
    """The transpose of a matrix, as an array of its own.

    XLA for CPU transposes 16-bit elements one by one, 14 times slower than 32-bit ones.
    """
    if matrix.dtype != jnp.bfloat16:
        return lax.transpose(matrix, (1, 0))
    wide = lax.transpose(matrix.astype(jnp.float32), (1, 0))
    return lax.optimization_barrier(wide).astype(jnp.bfloat16)


def _preferred(rules, a, b, *, exports, dimension_numbers, **params):
    """The product in the form that the rules prefer.

    `exports` says whether the program will be exported.
    """
    product = functools.partial(dot, dimension_numbers=dimension_numbers, **params)
    (ours, theirs), _ = dimension_numbers
    sizes = (*a.shape, *b.shape)
    if not rules.joins_time or not all(isinstance(d, int) for d in sizes):
        return product(a, b)
    # Leading axes that are all contracted, or all free, are like one axis in memory.
    lead = tuple(range(len(ours)))
    if ours == theirs == lead and a.ndim == b.ndim == len(lead) + 1:
        return _columns(rules, exports, _joined(a), _joined(b), **params)
    if len(ours) == 1 and ours[0] == a.ndim - 1 and a.ndim > 2 and b.ndim == 2:
        out = dot(_joined(a), b, (((1,), theirs), ((), ())), **params)
        return lax.reshape(out, (*a.shape[:-1], out.shape[-1]))
    return product(a, b)


def _joined(a):
    """The array with all axes but the last joined; axes of size 0 are allowed."""
    return lax.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))


def _columns(rules, exports, a, b, **params):
    """`a.T @ b`."""
    large, size = rules.transposes_products, a.shape[0] * a.shape[1] * b.shape[1]
    if large is None or size < large:
        return dot(a, b, _COLUMNS, **params)
    half = rules.halves_products and a.dtype == jnp.bfloat16 and not b.shape[1] % 2
    product = _transposed_in_two if half else functools.partial(_transposed, exports)
    product = functools.partial(product, **params)
    # Outside a branch, XLA would copy an input before the loops run.
    made = params["preferred_element_type"] or jnp.result_type(a, b)
    out = jax.ShapeDtypeStruct((a.shape[1], b.shape[1]), made)
    return in_branch(b, product, a, b, out=out)


def _transposed(exports, a, b, **params):
    """`a.T @ b`, with the transpose made first."""
    transposed = lax.transpose(a, (1, 0))
    if not exports:
        # Else XLA of JAX 0.12 copies the transpose once more. JAX exports no layouts.
        transposed = with_layout_constraint(transposed, Layout((0, 1)))
    transposed = lax.optimization_barrier(transposed)
    out = dot(transposed, b, ROWS, **params)
    # Without the barrier XLA would swap the operands to undo a transpose of the result.
    return lax.optimization_barrier(out)


def _transposed_in_two(a, b, **params):
    """`a.T @ b` for bfloat16, in two halves of the columns of `b`, sliced as bits."""
    transposed, half = copy_transposed(a), b.shape[1] // 2
    bits = lax.bitcast_convert_type(b, jnp.uint16)

    def columns(i, out):
        part = lax.dynamic_slice_in_dim(bits, i * half, half, 1)
        part = lax.bitcast_convert_type(part, jnp.bfloat16)
        return lax.dynamic_update_slice_in_dim(
            out, dot(transposed, part, ROWS, **params), i * half, 1
        )

    whole = functools.partial(dot, dimension_numbers=_COLUMNS, **params)
    out = jax.eval_shape(whole, a, b)
    return lax.fori_loop(0, 2, columns, jnp.zeros(out.shape, out.dtype))
