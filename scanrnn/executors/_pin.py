"""Pin the layout of arrays: step by step, whatever comes before and after a loop.

The memory of a TPU has tiles of 8 by 128 numbers. A row whose last axes do not fill the
tiles takes more memory than its size: `[1024, 16]` eight times as much, `[16, 64]`
twice. So the axes of a large row are reordered if that saves more than half of its
memory. The last axes of a small row are joined if that fills its tiles.

A program that is exported, as by `jax.export`, cannot name a layout. There the arrays
are left as they are, and the rest of the program is the same. `pin` is never
differentiated.
"""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from scanrnn.planner import compat

pin_p = Primitive("pin")
# Numbers in a tile; and the most numbers in a small row.
_TILE = 8 * 128
_SMALL = 16 * _TILE


def pin(array):
    """The same array, with its rows one after the other in memory."""
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return array  # a layout of keys would need the axes of their data
    return pin_p.bind(array, lead=1)


def join_axes(array):
    """The array with the last two axes of its rows joined, if that fills tiles.

    A row must be split again later, which is cheap for a small one. So only rows of one
    to sixteen tiles are joined. An array with a symbolic size stays as it is.
    """
    row = range(1, array.ndim)
    if not all(isinstance(size, int) for size in array.shape):
        return array
    size = math.prod(array.shape[1:])
    if len(row) < 2 or not _TILE <= size <= _SMALL:
        return array
    if min(_padded(array, order) for order in itertools.permutations(row)) < 2 * size:
        return array
    return lax.reshape(array, (*array.shape[:-2], array.shape[-2] * array.shape[-1]))


def _named(array, lead):
    first, row = tuple(range(lead)), tuple(range(lead, array.ndim))
    best = min(itertools.permutations(row), key=lambda order: _padded(array, order))
    least = max(2 * _padded(array, best), _SMALL)
    order = best if least < _padded(array, row) else row
    return with_layout_constraint(array, Layout(major_to_minor=(*first, *order)))


def _padded(array, order) -> int:
    """The numbers that a row takes in memory, with its axes in a given order."""
    *lead, sublanes, lanes = (1, 1, *(array.shape[i] for i in order))
    return math.prod(lead) * -(-sublanes // 8) * 8 * -(-lanes // 128) * 128


def _lower(ctx, array, lead):
    if compat.is_for_export(ctx):
        return [array]
    named = functools.partial(_named, lead=lead)
    return mlir.lower_fun(named, multiple_results=False)(ctx, array)


def _batched(args, axes, lead):
    (array,), (axis,) = args, axes
    return pin_p.bind(jnp.moveaxis(array, axis, 0), lead=lead + 1), 0


pin_p.def_impl(lambda array, lead: array)
pin_p.def_abstract_eval(lambda aval, lead: aval)
batching.primitive_batchers[pin_p] = _batched
mlir.register_lowering(pin_p, _lower)
