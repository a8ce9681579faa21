"""Pin the layout of arrays: step by step, whatever comes before and after a loop.

Memory may have tiles. A row whose last axes do not fill them takes more than its size.
So the axes of a large row are reordered if that saves more than half of its memory. The
last axes of a small row are joined if that fills its tiles. A tile is given as its two
sides, and the most tiles of a small row.

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

from scanrnn.planner.integers import next_multiple
from scanrnn.planner.ir import compat

pin_p = Primitive("scanrnn_pin")
Tile = tuple[int, int, int]


def pin(array, tile: Tile, lead: int = 1):
    """The same array, with its rows one after the other in memory.

    The axes of time come first: `lead` of them; none for a single row, as of a carry.
    """
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return array  # a layout of keys would need the axes of their data
    return pin_p.bind(array, lead=lead, tile=tile)


def join_axes(array, tile: Tile):
    """The array with the last two axes of its rows joined, if that fills tiles.

    A row must be split again later, which is cheap for a small one. So only small rows
    of at least one tile are joined. An array with a symbolic size stays as it is.
    """
    row = range(1, array.ndim)
    if not all(isinstance(size, int) for size in array.shape):
        return array
    size, least = math.prod(array.shape[1:]), tile[0] * tile[1]
    if len(row) < 2 or not least <= size <= math.prod(tile):
        return array
    orders = itertools.permutations(row)
    if min(_padded(array, order, tile) for order in orders) < 2 * size:
        return array
    return lax.reshape(array, (*array.shape[:-2], array.shape[-2] * array.shape[-1]))


def _named(array, lead, tile):
    first, row = tuple(range(lead)), tuple(range(lead, array.ndim))
    padded = {
        order: _padded(array, order, tile) for order in itertools.permutations(row)
    }
    best = min(padded, key=padded.__getitem__)
    least = max(2 * padded[best], math.prod(tile))
    order = best if least < padded[row] else row
    return with_layout_constraint(array, Layout(major_to_minor=(*first, *order)))


def _padded(array, order, tile) -> int:
    """The numbers that a row takes in memory, with its axes in a given order."""
    *lead, rows, columns = (1, 1, *(array.shape[i] for i in order))
    return (
        math.prod(lead) * next_multiple(rows, tile[0]) * next_multiple(columns, tile[1])
    )


def _lower(ctx, array, **params):
    if compat.is_for_export(ctx):
        return [array]
    named = functools.partial(_named, **params)
    return mlir.lower_fun(named, multiple_results=False)(ctx, array)


def _batched(args, axes, lead, tile):
    (array,), (axis,) = args, axes
    return pin_p.bind(jnp.moveaxis(array, axis, 0), lead=lead + 1, tile=tile), 0


pin_p.def_impl(lambda array, **_: array)
pin_p.def_abstract_eval(lambda aval, **_: aval)
batching.primitive_batchers[pin_p] = _batched
mlir.register_lowering(pin_p, _lower)
