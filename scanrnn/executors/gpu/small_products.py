"""Products of two arrays in registers, for one state.

Triton multiplies matrices with 16 rows and columns at least. Smaller ones, such as a
matrix and a vector, are multiplied number by number and summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from scanrnn.executors.gpu.block_checks import LEAST_SIDE, NotAKernelError
from scanrnn.executors.gpu.states import StateLayout
from scanrnn.planner.ir import ops
from scanrnn.planner.passes.wide_sums import wide


def product(eqn: JaxprEqn, ins: Sequence, layout: StateLayout) -> Any:
    """The product of the arrays of one state; it is accumulated in float32.

    Raises:
      NotAKernelError: if it mixes the states.
    """
    (out,) = eqn.outvars
    contracted, batch = eqn.params["dimension_numbers"]
    pairs = sorted(zip(*contracted, strict=True))
    matrices = [
        _matrix(v, value, [pair[side] for pair in pairs], batch[side], layout)
        for side, (v, value) in enumerate(zip(eqn.invars, ins, strict=True))
    ]
    made = _multiplied(matrices, eqn.params["precision"], wide(ops.aval(out).dtype))
    return lax.reshape(made, layout.shape(out)).astype(ops.aval(out).dtype)


def _matrix(v, value, summed: list[int], batch: Sequence[int], layout: StateLayout):
    """A factor as a matrix, and which of its two axes is summed."""
    widths = layout.widths(v)
    if any(layout.counts(v, i) for i in summed):
        raise NotAKernelError("a product mixes the states")
    if any(widths[i] > 1 for i in batch):
        raise NotAKernelError("its products have more axes than those of the states")
    rest = [i for i in range(len(widths)) if i not in (*summed, *batch)]
    wide_ones = [[i for i in axes if widths[i] > 1] for axes in (rest, summed)]
    first = bool(wide_ones[0]) and wide_ones[1] < wide_ones[0]
    order = [i for axes in (wide_ones[::-1] if first else wide_ones) for i in axes]
    value = lax.reshape(value, [widths[i] for i in sorted(order)])
    value = lax.transpose(value, [sorted(order).index(i) for i in order])
    sizes = [ops.product(widths[i] for i in axes) for axes in (rest, summed)]
    return lax.reshape(value, sizes[::-1] if first else sizes), 0 if first else 1


def _multiplied(matrices: Sequence[tuple], precision, dtype):
    """The product of two matrices, each with the axis that is summed."""
    (a, i), (b, j) = matrices
    rows, columns, depth = a.shape[1 - i], b.shape[1 - j], a.shape[i]
    if min(rows, columns, depth) >= LEAST_SIDE:
        common = jnp.promote_types(a.dtype, b.dtype)
        return lax.dot_general(
            a.astype(common),
            b.astype(common),
            (((i,), (j,)), ((), ())),
            precision=precision,
            preferred_element_type=dtype,
        )
    a, b = a.astype(dtype), b.astype(dtype)
    if rows == 1:
        return lax.reduce_sum(b * lax.reshape(a, _along(b, j)), (j,))
    if columns == 1:
        return lax.reduce_sum(a * lax.reshape(b, _along(a, i)), (i,))
    a = lax.reshape(a if i else lax.transpose(a, (1, 0)), (rows, 1, depth))
    b = lax.reshape(b if j else lax.transpose(b, (1, 0)), (1, columns, depth))
    return lax.reduce_sum(a * b, (2,))


def _along(matrix, axis: int) -> tuple[int, int]:
    """The shape of a vector along an axis of a matrix."""
    return (matrix.shape[0], 1) if axis == 0 else (1, matrix.shape[1])
