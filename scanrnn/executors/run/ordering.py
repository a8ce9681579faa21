"""Tell XLA for CPU what to compute late.

XLA runs what is ready. For example, it copies inputs before the first loops, and keeps
the copies all the time. But it computes nothing inside a branch before the branch is
taken. So this module puts work into a branch that is always taken. XLA cannot simplify
its condition, and cannot evaluate it until a given array is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

late_p = Primitive("scanrnn_late")


def late(array, f: Callable, *args, out: jax.ShapeDtypeStruct):
    """Compute `f(*args)`, of type `out`, after `array` on XLA for CPU.

    It is a primitive of its own for `vmap`. There the condition must not be batched:
    then there would be no branch.
    """
    return late_p.bind(array, *args, f=f, out=out)


def copied(array):
    """The array in memory of its own: XLA for CPU fuses nothing into a branch."""
    return late(array, lambda a: a, array, out=_type_of(array))


def in_branch(array, f: Callable, *args, out: jax.ShapeDtypeStruct):
    """Compute `f(*args)`, of type `out`, in a branch taken when `array` is ready.

    Without a branch if `array` is empty, or if its dtype is not a float of 8 bits or
    more.
    """
    floats = jnp.issubdtype(array.dtype, jnp.floating)
    bits = jnp.finfo(array.dtype).bits if floats else 0
    if bits < 8 or not array.size:
        return f(*args)
    first = lax.reshape(lax.slice(array, [0] * array.ndim, [1] * array.ndim), ())
    ones = lax.population_count(lax.bitcast_convert_type(first, f"uint{bits}"))

    def never(*_):
        return jnp.zeros(out.shape, out.dtype)

    return lax.cond(lax.le(ones, ones.dtype.type(bits)), f, never, *args)


def _type_of(array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _value(array, *args, f, out):
    return in_branch(array, f, *args, out=out)


def _batched(values, axes, f, out):
    (array, *args), (_, *axes) = values, axes
    pairs = zip(args, axes, strict=True)
    sizes = [a.shape[axis] for a, axis in pairs if axis is not None]
    if not sizes:
        return late(array, f, *args, out=out), None
    out = out.update(shape=(sizes[0], *out.shape))
    return late(array, jax.vmap(f, tuple(axes)), *args, out=out), 0


def _abstract(*_: Any, f, out):
    return jax.typeof(out)


late_p.def_impl(_value)
late_p.def_abstract_eval(_abstract)
batching.primitive_batchers[late_p] = _batched
mlir.register_lowering(late_p, mlir.lower_fun(_value, multiple_results=False))
