"""A matrix product that says how its own transpose is computed.

`gemm` is `lax.dot_general` on two matrices with two decisions of its own:

- What JAX makes of the transpose of a bfloat16 product that accumulates in float32
  is a product of float32 with bfloat16, which no library has a kernel for. Here the
  cotangent is rounded to bfloat16 as the operands were (as under autocast in torch,
  and in Flax with `dtype=bfloat16`); the product still accumulates in float32.
- A weight gradient `x.T @ dz` contracts the rows of both. XLA for CPU has fast
  kernels only for the columns of the left operand, and turns nothing by itself.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from scanrnn.planner import ops
from scanrnn.planner.ordering import in_branch

gemm_p = Primitive("gemm")

# Fewer multiplications than this are not worth a second look.
_LARGE = 2**22
_FLOATS = tuple(map(jnp.dtype, ("bfloat16", "float16", "float32", "float64")))
# Dimension numbers of `a @ b`, and of `a.T @ b`.
_ROWS, _COLUMNS = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))


def gemm(eqn_params: dict, a, b):
    """The product of a `dot_general` equation with the given operands."""
    params = {k: eqn_params[k] for k in ("dimension_numbers", "precision")}
    params["preferred_element_type"] = eqn_params["preferred_element_type"]
    if fits(eqn_params, jax.typeof(a), jax.typeof(b)):
        return gemm_p.bind(a, b, **params)
    return lax.dot_general_p.bind(a, b, **eqn_params)


def fits(params: dict, a, b) -> bool:
    """Whether operands of these types are matrices of their own, on one device."""
    (contract, batch) = params["dimension_numbers"]
    matrices = a.ndim == b.ndim == 2 and batch == ((), ()) and len(contract[0]) == 1
    varying = any(map(ops.is_varying, (a, b)))
    floats = all(v.dtype in _FLOATS for v in (a, b))
    return matrices and floats and not varying and ops.on_one_device((a, b))


def turn(matrix):
    """The transpose of a matrix, as an array of its own.

    XLA for CPU turns 16-bit elements one by one, 14 times slower than 32-bit ones.
    """
    if matrix.dtype != jnp.bfloat16:
        return matrix.T
    wide = matrix.astype(jnp.float32).T
    return lax.optimization_barrier(wide).astype(jnp.bfloat16)


def dot(a, b, dimension_numbers, precision, preferred_element_type):
    """The product as JAX has it."""
    return lax.dot_general(
        a,
        b,
        dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _transpose_lhs(ct, a, b, *, dimension_numbers, precision, **_):
    ((axis_a,), (axis_b,)), _ = dimension_numbers
    return _cotangent(a.aval.dtype, axis_a, (ct, 1), (b, 1 - axis_b), precision)


def _transpose_rhs(ct, a, b, *, dimension_numbers, precision, **_):
    ((axis_a,), (axis_b,)), _ = dimension_numbers
    return _cotangent(b.aval.dtype, axis_b, (ct, 0), (a, 1 - axis_a), precision)


def _cotangent(dtype, axis, ct, other, precision):
    """That of an operand: `ct` times the other one, each over the axis given with it.

    `axis` is the one over which the operand was contracted: it came from `other`.
    """
    ct = _rounded(ct[0], dtype, other[0].dtype), ct[1]
    (a, axis_a), (b, axis_b) = (ct, other) if axis == 1 else (other, ct)
    out = gemm_p.bind(
        a,
        b,
        dimension_numbers=(((axis_a,), (axis_b,)), ((), ())),
        precision=precision,
        preferred_element_type=dtype if jnp.finfo(dtype).bits > 32 else jnp.float32,
    )
    return lax.convert_element_type(out, dtype)


def _rounded(ct, *dtypes):
    """The cotangent of a product of these types, ready to be an operand itself.

    Not for float16, whose range a cotangent may leave.
    """
    halves = all(dtype == jnp.bfloat16 for dtype in dtypes)
    return ct.astype(jnp.bfloat16) if halves else ct


def _batched(values, axes, **params):
    out = jax.vmap(functools.partial(dot, **params), in_axes=tuple(axes))(*values)
    return out, 0


def _on_cpu(a, b, *, dimension_numbers, **params):
    """`a.T @ b` in a form that XLA for CPU has a kernel for."""
    large = a.shape[0] * a.shape[1] * b.shape[1] >= _LARGE
    if dimension_numbers != _COLUMNS or not large:
        return dot(a, b, dimension_numbers, **params)
    halved = a.dtype == jnp.bfloat16 and not b.shape[1] % 2
    product = functools.partial(_halves if halved else _turned, **params)
    # Else the copy of an input would be made before the loops.
    return in_branch(b, product, a, b)


def _turned(a, b, **params):
    out = dot(lax.optimization_barrier(a.T), b, _ROWS, **params)
    # Else a transpose of the result would be undone, and the operands swapped.
    return lax.optimization_barrier(out)


def _halves(a, b, **params):
    """For bfloat16, in which a barrier would be a change of layout only.

    There is no kernel for that. What enters a loop lies in memory as it says; a slice
    of bfloat16 would be one of float32, so it is taken from the bits.
    """
    turned, half = turn(a), b.shape[1] // 2
    bits = lax.bitcast_convert_type(b, jnp.uint16)

    def columns(i, out):
        part = lax.dynamic_slice_in_dim(bits, i * half, half, 1)
        part = lax.bitcast_convert_type(part, jnp.bfloat16)
        return lax.dynamic_update_slice_in_dim(
            out, dot(turned, part, _ROWS, **params), i * half, 1
        )

    whole = functools.partial(dot, dimension_numbers=_COLUMNS, **params)
    out = jax.eval_shape(whole, a, b)
    return lax.fori_loop(0, 2, columns, jnp.zeros(out.shape, out.dtype))


def _type(a, b, **params):
    aval, _ = lax.dot_general_p.abstract_eval(a, b, out_sharding=None, **params)
    return aval


_eager = jax.jit(
    gemm_p.bind,
    static_argnames=("dimension_numbers", "precision", "preferred_element_type"),
)
gemm_p.def_abstract_eval(_type)
gemm_p.def_impl(_eager)
ad.defbilinear(gemm_p, _transpose_lhs, _transpose_rhs)
batching.primitive_batchers[gemm_p] = _batched
mlir.register_lowering(gemm_p, mlir.lower_fun(dot, multiple_results=False))
mlir.register_lowering(
    gemm_p, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu"
)
