"""A matrix product that says how to compute its own transpose.

`gemm` is `lax.dot_general` without batch axes, with a rule of its own: if a bfloat16
product accumulates in float32, its transpose in JAX is a product of float32 with
bfloat16. No library has a kernel for that. Here the cotangent is rounded to bfloat16 as
the operands were (as under autocast in torch, and in Flax with `dtype=bfloat16`). The
product still accumulates in float32.

It is lowered as `lax.dot_general`, unless an executor has a form that it prefers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive, Var
from jax.interpreters import ad, batching, mlir

from scanrnn.planner.ir import compat, ops

gemm_p = Primitive(ops.PRODUCT)
# The product of JAX.
dot = lax.dot_general

_PARAMS = ("dimension_numbers", "precision", "preferred_element_type")
_FLOATS = tuple(map(jnp.dtype, ("bfloat16", "float16", "float32", "float64")))
# Dimension numbers of `a @ b`.
ROWS = (((1,), (0,)), ((), ()))


def gemm(eqn_params: dict, a, b):
    """The product of a `dot_general` equation with the given operands."""
    (contract, batch) = eqn_params["dimension_numbers"]
    types = map(jax.typeof, (a, b))
    floats = all(v.dtype in _FLOATS and not ops.is_split(v) for v in types)
    # No batch axes: the operands share only contracted axes.
    if batch == ((), ()) and len(contract[0]) > 0 and floats:
        return gemm_p.bind(a, b, **{name: eqn_params[name] for name in _PARAMS})
    return lax.dot_general_p.bind(a, b, **eqn_params)


def transposes(matrices: Iterable[Any]) -> dict[Any, Var]:
    """A new variable for the transpose of each matrix."""
    return {v: Var(_transposed_type(ops.aval(v))) for v in matrices}


def _transposed_type(aval):
    return compat.type_of(lax.transpose_p, aval, permutation=(1, 0))


def on_the_left(eqn, side: int, matrix, data):
    """The product of an equation as `matrix @ data`; the matrix was operand `side`."""
    params = {name: eqn.params[name] for name in _PARAMS[1:]}
    if side == 1:
        params["precision"] = swapped(params["precision"])
    return dot(matrix, data, ROWS, **params)


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


def _type(a, b, **params):
    return compat.type_of(lax.dot_general_p, a, b, out_sharding=None, **params)


_eager = jax.jit(gemm_p.bind, static_argnames=_PARAMS)
gemm_p.def_abstract_eval(_type)
gemm_p.def_impl(_eager)
ad.defbilinear(gemm_p, *(functools.partial(_cotangent, side) for side in (0, 1)))
batching.primitive_batchers[gemm_p] = _batched
mlir.register_lowering(gemm_p, mlir.lower_fun(dot, multiple_results=False))
