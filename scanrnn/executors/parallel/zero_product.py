"""A product that is zero wherever one of its operands is zero.

A factor of a scan is a product of the factors of many steps: it may overflow where no
value of the loop does. Times a value of zero it still has to give zero. And a factor of
zero removes what came before it, even an infinity.

As ordinary operations, such a product is not linear in the value, and JAX could not
transpose it. So it is a primitive, with rules of its own.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from scanrnn.planner.ir import compat
from scanrnn.planner.ir.graph import struct_of

product_p = Primitive("product_with_zeros")


def times(factor, value):
    """The product, in the dtype of the value; it is linear in the value.

    Args:
      factor: an array. NaN times zero is zero, too.
      value: an array; axes of size 1 are broadcast, here and in the factor.
    """
    rank = max(factor.ndim, value.ndim)
    pairs = ((a, tuple(range(rank - a.ndim))) for a in (factor, value))
    return product_p.bind(*_varying(*(jnp.expand_dims(a, axes) for a, axes in pairs)))


def _varying(*arrays):
    """The arrays, which inside `jax.shard_map` all vary over the same mesh axes."""
    axes = [compat.varying_axes(jax.typeof(a)) for a in arrays]
    every = dict.fromkeys(itertools.chain(*axes))
    for array, known in zip(arrays, axes, strict=True):
        missing = tuple(axis for axis in every if axis not in known)
        yield lax.pcast(array, missing, to="varying") if missing else array


def _product(factor, value):
    # XLA fuses a choice within a choice better than one by two conditions.
    product = jnp.where(value == 0, 0, factor * value)
    return jnp.where(factor == 0, 0, product).astype(value.dtype)


def _type(factor, value):
    return jax.make_jaxpr(_product)(*map(struct_of, (factor, value))).out_avals[0]


def _jvp(primals, tangents):
    """The derivative by a factor of zero is the value, if that is finite."""
    (factor, value), (d_factor, d_value) = primals, tangents
    out, tangent = product_p.bind(factor, value), []
    if type(d_value) is not ad.Zero:
        tangent.append(product_p.bind(factor, d_value))
    if type(d_factor) is not ad.Zero:
        known = jnp.where((factor == 0) & ~jnp.isfinite(value), 0, value)
        tangent.append((d_factor * known).astype(value.dtype))
    return out, functools.reduce(jnp.add, tangent)


def _transposed(ct, factor, value):
    made, shape = product_p.bind(factor, ct), value.aval.shape
    axes = [i for i, size in enumerate(shape) if size != made.shape[i]]
    return None, made.sum(axes, keepdims=True)


def _batched(operands, axes):
    pairs = zip(operands, axes, strict=True)
    first = (a[None] if i is None else jnp.moveaxis(a, i, 0) for a, i in pairs)
    return product_p.bind(*first), 0


product_p.def_impl(jax.jit(_product))
product_p.def_abstract_eval(_type)
ad.primitive_jvps[product_p] = _jvp
ad.primitive_transposes[product_p] = _transposed
batching.primitive_batchers[product_p] = _batched
mlir.register_lowering(product_p, mlir.lower_fun(_product, multiple_results=False))
