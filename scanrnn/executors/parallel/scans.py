"""Scans over time with an associative operation, such as `h' = A h + b`.

Nothing is divided. A factor of zero removes all that came before it, even an infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax

from scanrnn.executors.parallel import scan_forms
from scanrnn.executors.parallel.operation import AFFINE, MATRICES, Operation, rows_of
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.rule_groups import ScanRules

_RULES = ScanRules()


def affine(
    A: Sequence, b: Sequence, start: Sequence, rows: Rows, rules: ScanRules = _RULES
) -> list:
    """The values after each step of `h' = A h + b`, where h has n coupled numbers.

    An array may have size 1 along an axis (also that of time) where it is constant.

    Args:
      A: n rows of n arrays each, one row after the other, `[T, ...]`.
      b: n arrays `[T, ...]`.
      start: n arrays `[...]`, the values before the first step.
      rows: where the rows of the steps lie.
      rules: which form the scan takes.

    Returns:
      n arrays `[T, ...]`.
    """
    start = [jnp.expand_dims(s, 0) for s in start]
    return _scanned(AFFINE, A, _with_nan(A, b), start, rows, rules)


def entered(
    A: Sequence,
    b: Sequence,
    d: Sequence,
    start: Sequence,
    rows: Rows,
    rules: ScanRules = _RULES,
) -> tuple[list, list]:
    """The sums `u = h + d` at each step, where `h' = A u + b`.

    The scan is that of `u' = A u + (b + d')`, where d' is the d of the next step. So
    neither h nor `A d` is an array of all rows.

    Args:
      A: as in `affine`.
      b: as in `affine`.
      d: n arrays `[T, ...]`.
      start: n arrays `[...]`, the h before the first step.
      rows: where the rows of the steps lie.
      rules: which form the scan takes.

    Returns:
      n arrays `[T, ...]` of the sums, and n arrays `[1, ...]`, the h after all rows.
    """
    start, b = [jnp.expand_dims(s, 0) for s in start], _with_nan(A, b)
    first = [s + _row(ahead, rows.first) for s, ahead in zip(start, d, strict=True)]
    added = [
        _with_first(ahead + _later(late, rows), begun, rows)
        for ahead, late, begun in zip(d, b, first, strict=True)
    ]
    nothing = [jnp.zeros_like(begun) for begun in first]
    factors = [_later(a, rows) for a in A]
    u = _scanned(AFFINE, factors, added, nothing, rows, rules)
    return u, AFFINE.after(*([_row(a, rows.last) for a in of] for of in (A, u, b)))


def sums(b, start, rows: Rows):
    """The values after each step of `h' = h + b`."""
    b = _with_first(b, _row(b, rows.first) + jnp.expand_dims(start, 0), rows)
    return lax.cumsum(b, 0, rows.reverse)


def joined(join: Callable, a, b, gone, start, rows: Rows, rules: ScanRules = _RULES):
    """The values after each step of `h' = join(h + a, b)`: join is max or logaddexp.

    Where `gone`, they are b alone, whatever h is.
    """

    def both(early, late):
        return [early[0] + late[0], early[1] | late[1]]

    def after(factors, h, b):
        a, gone = factors
        return [join(jnp.where(gone, -jnp.inf, h[0] + a), b[0])]

    start = jnp.expand_dims(start, 0)
    operation = Operation(both, after)
    return _scanned(operation, [a, gone], [b], [start], rows, rules)[0]


def before(after, start, rows: Rows):
    """The values before each step, given the values after each step."""
    start = jnp.expand_dims(start, 0)
    parts = [after[1:], start] if rows.reverse else [start, after[:-1]]
    return lax.concatenate(parts, 0)


def _scanned(
    operation: Operation,
    A: Sequence,
    b: Sequence,
    start: list,
    rows: Rows,
    rules: ScanRules,
) -> list:
    """The values after each step, where the rows lie."""
    if operation is AFFINE and len(b) > rules.apart:
        n = len(b)
        matrices, added, h = _together(A, n, n), _together(b, n), _together(start, n)
        (found,) = _scanned(MATRICES, [matrices], [added], [h], rows, rules)
        return list(jnp.unstack(found, axis=1))
    b = [jnp.broadcast_to(e, (rows.length, *e.shape[1:])) for e in b]
    if not rows.reverse:
        return scan_forms.values(operation, A, b, start, rules)
    found = scan_forms.values(operation, _turned(A), _turned(b), start, rules)
    return _turned(found)


def _with_nan(A: Sequence, b: Sequence) -> list:
    """The addends; NaN where a factor of their row is. A product of zero drops NaN."""
    found = []
    for i, added in enumerate(b):
        for factor in A[i * len(b) : (i + 1) * len(b)]:
            if jnp.issubdtype(factor.dtype, jnp.inexact):
                # No operation makes it: `jax.debug_nans` would stop the program there.
                nan = added.dtype.type(float("nan"))
                added = jnp.where(jnp.isnan(factor), nan, added)
        found.append(added)
    return found


def _turned(arrays: Sequence) -> list:
    return [lax.rev(a, [0]) if len(a) > 1 else a for a in arrays]


def _together(arrays: Sequence, *sizes: int):
    """One array of several, with axes of these sizes after that of time."""
    value = jnp.stack(jnp.broadcast_arrays(*arrays), 1)
    return value.reshape(len(value), *sizes, *value.shape[2:])


def _row(array, step: int):
    """The values at a step, `[1, ...]`."""
    return rows_of([array], step, step + 1)[0]


def _later(array, rows: Rows):
    """The array one step later. Zeros come in first, unless it is constant."""
    if len(array) == 1:
        return array
    ends = (-1, 1, 0) if rows.reverse else (1, -1, 0)
    zero = jnp.zeros((), array.dtype)
    return lax.pad(array, zero, [ends, *[(0, 0, 0)] * (array.ndim - 1)])


def _with_first(b, value, rows: Rows):
    """The array `b` for all steps, with another value `[1, ...]` at the first step."""
    shape = jnp.broadcast_shapes(b.shape[1:], value.shape[1:])
    sizes = (rows.length, *(1 for _ in shape))
    here = lax.broadcasted_iota("int32", sizes, 0) == rows.first
    return jnp.where(here, value, jnp.broadcast_to(b, (rows.length, *shape)))
