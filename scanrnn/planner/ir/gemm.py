"""A matrix product that says how to compute its own transpose.

`gemm` is `lax.dot_general` without batch axes, with two rules of its own:

- If a bfloat16 product accumulates in float32, its transpose in JAX is a product of
  float32 with bfloat16. No library has a kernel for that. Here the cotangent is
  rounded to bfloat16 as the operands were (as under autocast in torch, and in Flax
  with `dtype=bfloat16`). The product still accumulates in float32.
- The gradient of `x @ W` contracts over T and B. On one device `Rules` may join the two
  axes, and transpose the left operand of a weight gradient `x.T @ dz`. A batch that is
  split among devices keeps its axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive, Var
from jax.interpreters import ad, batching, mlir

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import struct
from scanrnn.planner.ir.ordering import in_branch
from scanrnn.planner.rules import Rules

gemm_p = Primitive(ops.PRODUCT)
# The product of JAX.
dot = lax.dot_general

_PARAMS = ("dimension_numbers", "precision", "preferred_element_type")
_FLOATS = tuple(map(jnp.dtype, ("bfloat16", "float16", "float32", "float64")))
# Dimension numbers of `a @ b`, and of `a.T @ b`.
_ROWS, _COLUMNS = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))


def gemm(eqn_params: dict, a, b):
    """The product of a `dot_general` equation with the given operands."""
    (contract, batch) = eqn_params["dimension_numbers"]
    types = map(jax.typeof, (a, b))
    floats = all(v.dtype in _FLOATS and not ops.is_split(v) for v in types)
    # No batch axes: the operands share only contracted axes.
    if batch == ((), ()) and len(contract[0]) > 0 and floats:
        return gemm_p.bind(a, b, **{name: eqn_params[name] for name in _PARAMS})
    return lax.dot_general_p.bind(a, b, **eqn_params)


def copy_transposed(matrix):
    """The transpose of a matrix, as an array of its own.

    XLA for CPU transposes 16-bit elements one by one, 14 times slower than 32-bit ones.
    """
    if matrix.dtype != jnp.bfloat16:
        return lax.transpose(matrix, (1, 0))
    wide = lax.transpose(matrix.astype(jnp.float32), (1, 0))
    return lax.optimization_barrier(wide).astype(jnp.bfloat16)


def transposes(matrices: Iterable[Any]) -> dict[Any, Var]:
    """A new variable for the transpose of each matrix."""
    # `jax.eval_shape` drops the mesh of a type if one of its axes is Auto, and a value
    # that varies over another axis of that mesh then has no type.
    traced = {v: jax.make_jaxpr(copy_transposed)(struct(v)) for v in matrices}
    return {v: Var(jaxpr.out_avals[0]) for v, jaxpr in traced.items()}


def on_the_left(eqn, side: int, matrix, data):
    """The product of an equation as `matrix @ data`; the matrix was operand `side`."""
    params = {name: eqn.params[name] for name in _PARAMS[1:]}
    if side == 1:
        params["precision"] = swapped(params["precision"])
    return dot(matrix, data, _ROWS, **params)


def swapped(precision):
    """The precision of a product whose operands change places."""
    return precision[::-1] if type(precision) is tuple else precision


def _cotangent(side, ct, *operands, dimension_numbers, precision, **_):
    """The cotangent of the operand on one side: `ct` times the other operand."""
    aval, other = operands[side].aval, operands[1 - side]
    ours, theirs = (dimension_numbers[0][i] for i in (side, 1 - side))
    # The axes of the result are those of the left operand, then of the right one.
    count = other.ndim - len(theirs)
    axes = tuple(range(count) if side == 1 else range(ct.ndim - count, ct.ndim))
    # Not for float16: a cotangent may exceed its range.
    if aval.dtype == other.dtype == jnp.bfloat16:
        ct = ct.astype(jnp.bfloat16)
    free = tuple(i for i in range(other.ndim) if i not in theirs)
    came = [ours[theirs.index(i)] for i in sorted(theirs)]
    rest = [i for i in range(aval.ndim) if i not in ours]
    # Of the two orders of the operands, take the one whose result has our axes' order.
    first = came == sorted(came) and came + rest == list(range(aval.ndim))
    pairs = [(other, free), (ct, axes)] if first else [(ct, axes), (other, free)]
    (a, axes_a), (b, axes_b) = pairs
    wide = jnp.finfo(aval.dtype).bits > 32
    out = gemm_p.bind(
        a,
        b,
        dimension_numbers=((axes_a, axes_b), ((), ())),
        precision=precision,
        preferred_element_type=aval.dtype if wide else jnp.float32,
    )
    order = came + rest if first else rest + came
    out = lax.transpose(out, [order.index(i) for i in range(aval.ndim)])
    return lax.convert_element_type(out, aval.dtype)


def _batched(values, axes, **params):
    out = jax.vmap(functools.partial(dot, **params), in_axes=tuple(axes))(*values)
    return out, 0


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
    large, size = rules.large_product, a.shape[0] * a.shape[1] * b.shape[1]
    if large is None or size < large:
        return dot(a, b, _COLUMNS, **params)
    half = rules.halves_products and a.dtype == jnp.bfloat16 and not b.shape[1] % 2
    product = _transposed_in_two if half else functools.partial(_transposed, exports)
    product = functools.partial(product, **params)
    # Outside a branch, XLA would copy an input before the loops run.
    return in_branch(b, product, a, b)


def _transposed(exports, a, b, **params):
    """`a.T @ b`, with the transpose made first."""
    transposed = lax.transpose(a, (1, 0))
    if not exports:
        # Else XLA of JAX 0.12 copies the transpose once more. JAX exports no layouts.
        transposed = with_layout_constraint(transposed, Layout((0, 1)))
    transposed = lax.optimization_barrier(transposed)
    out = dot(transposed, b, _ROWS, **params)
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
            out, dot(transposed, part, _ROWS, **params), i * half, 1
        )

    whole = functools.partial(dot, dimension_numbers=_COLUMNS, **params)
    out = jax.eval_shape(whole, a, b)
    return lax.fori_loop(0, 2, columns, jnp.zeros(out.shape, out.dtype))


def lower_products(platform: str, rules: Rules) -> None:
    """Lower products as some rules prefer, on one device of a platform."""
    compat.lower_alone(gemm_p, platform, functools.partial(_preferred, rules), dot)


def _type(a, b, **params):
    return compat.type_of(lax.dot_general_p, a, b, out_sharding=None, **params)


_eager = jax.jit(gemm_p.bind, static_argnames=_PARAMS)
gemm_p.def_abstract_eval(_type)
gemm_p.def_impl(_eager)
ad.defbilinear(gemm_p, *(functools.partial(_cotangent, side) for side in (0, 1)))
batching.primitive_batchers[gemm_p] = _batched
mlir.register_lowering(gemm_p, mlir.lower_fun(dot, multiple_results=False))
