"""Arrays laid out step by step, whatever comes before and after a loop.

The program of a plan is the same where it will be stored, as by `jax.export`: there
alone a layout may not be named, and the array is left as it is. Never differentiated.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from scanrnn.planner import compat

pin_p = Primitive("pin")


def pin(array):
    """The same array, with its axes in memory in the order that they have."""
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return array  # keys have axes of their own below
    return pin_p.bind(array)


def _named(array):
    order = Layout(major_to_minor=tuple(range(array.ndim)))
    return with_layout_constraint(array, order)


def _lower(ctx, array):
    if compat.is_for_export(ctx):
        return [array]
    return mlir.lower_fun(_named, multiple_results=False)(ctx, array)


def _batched(args, axes):
    (array,), (axis,) = args, axes
    return pin_p.bind(jnp.moveaxis(array, axis, 0)), 0


pin_p.def_impl(lambda array: array)
pin_p.def_abstract_eval(lambda aval: aval)
batching.primitive_batchers[pin_p] = _batched
mlir.register_lowering(pin_p, _lower)
