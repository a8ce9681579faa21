"""Scans over time with an associative operation, such as `h' = A h + b`.

The steps are cut into chunks of `CHUNK`. First the steps of each chunk are joined to
one step, in all chunks at once. Then a shorter scan over these joined steps finds the
value before each chunk. Last, the steps of each chunk run again from there. Nothing is
divided. A factor of zero removes all that came before it, even an infinity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.planner.rows import Rows

# Compiled for an H100 and a TPU v5e, 2 starts more kernels and takes more cycles; 8
# needs more memory and, on the TPU, more cycles.
CHUNK = 4
# More coupled numbers than these are one array. As an array for each, a training step
# with four of them took 24 s to compile on a CPU, and one with six over 100 s.
_APART = 2


class _Steps(NamedTuple):
    """How the steps of a scan are joined. Factors, values and addends are lists.

    Attributes:
      join: `join(early, late)`, the factors of two steps in a row.
      after: `after(A, h, b)`, the values after a step.
    """

    join: Callable
    after: Callable


def affine(
    A: Sequence, b: Sequence, start: Sequence, rows: Rows, pads: bool = False
) -> list:
    """The values after each step of `h' = A h + b`, where h has n coupled numbers.

    An array may have size 1 along an axis (also that of time) where it is constant.

    Args:
      A: n rows of n arrays each, one row after the other, `[T, ...]`.
      b: n arrays `[T, ...]`.
      start: n arrays `[...]`, the values before the first step.
      rows: where the rows of the steps lie.
      pads: as `pads_scans` in `Rules`.

    Returns:
      n arrays `[T, ...]`.
    """
    start = [jnp.expand_dims(s, 0) for s in start]
    return _scanned(_AFFINE, A, b, start, rows, pads)


def entered(
    A: Sequence,
    b: Sequence,
    d: Sequence,
    start: Sequence,
    rows: Rows,
    pads: bool = False,
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
      pads: as `pads_scans` in `Rules`.

    Returns:
      n arrays `[T, ...]` of the sums, and n arrays `[1, ...]`, the h after all rows.
    """
    start = [jnp.expand_dims(s, 0) for s in start]
    first = [s + _row(ahead, rows.first) for s, ahead in zip(start, d, strict=True)]
    added = [
        _with_first(ahead + _later(late, rows), begun, rows)
        for ahead, late, begun in zip(d, b, first, strict=True)
    ]
    nothing = [jnp.zeros_like(begun) for begun in first]
    factors = [_later(a, rows) for a in A]
    u = _scanned(_AFFINE, factors, added, nothing, rows, pads)
    return u, _stepped(*([_row(a, rows.last) for a in of] for of in (A, u, b)))


def sums(b, start, rows: Rows):
    """The values after each step of `h' = h + b`."""
    b = _with_first(b, _row(b, rows.first) + jnp.expand_dims(start, 0), rows)
    return lax.cumsum(b, 0, rows.reverse)


def joined(join: Callable, a, b, gone, start, rows: Rows, pads: bool = False):
    """The values after each step of `h' = join(h + a, b)`: join is max or logaddexp.

    Where `gone`, they are b alone, whatever h is.
    """

    def both(early, late):
        return [early[0] + late[0], early[1] | late[1]]

    def after(factors, h, b):
        a, gone = factors
        return [join(jnp.where(gone, -jnp.inf, h[0] + a), b[0])]

    start = jnp.expand_dims(start, 0)
    steps = _Steps(both, after)
    return _scanned(steps, [a, gone], [b], [start], rows, pads)[0]


def before(after, start, rows: Rows):
    """The values before each step, given the values after each step."""
    start = jnp.expand_dims(start, 0)
    parts = [after[1:], start] if rows.reverse else [start, after[:-1]]
    return lax.concatenate(parts, 0)


def _scanned(
    steps: _Steps, A: Sequence, b: Sequence, start: list, rows: Rows, pads: bool
) -> list:
    """The values after each step, where the rows lie."""
    if steps is _AFFINE and len(b) > _APART:
        n = len(b)
        matrices, added, h = _together(A, n, n), _together(b, n), _together(start, n)
        (found,) = _scanned(_MATRICES, [matrices], [added], [h], rows, pads)
        return list(jnp.unstack(found, axis=1))
    b = [jnp.broadcast_to(e, (rows.length, *e.shape[1:])) for e in b]
    if not rows.reverse:
        return _values(steps, A, b, start, pads)
    found = _values(steps, _turned(A), _turned(b), start, pads)
    return _turned(found)


def _turned(arrays: Sequence) -> list:
    return [lax.rev(a, [0]) if len(a) > 1 else a for a in arrays]


def _values(
    steps: _Steps, A: Sequence, b: Sequence, h: list, pads: bool = False
) -> list:
    """The values after each step, from h `[1, ...]` on.

    Only the longest arrays are padded: the shorter scans are not read by other code.
    """
    chunks = len(b[0]) // CHUNK if len(b[0]) > CHUNK else 0
    found = [[] for _ in b]
    if chunks:
        whole = _in_chunks(steps, A, b, h, chunks)
        parts = [_in_turns(of_leaf, pads) for of_leaf in zip(*whole, strict=True)]
        h = [part[-1:] for part in parts]
        found = [[part] for part in parts]
    for row in range(chunks * CHUNK, len(b[0])):
        h = steps.after([_row(a, row) for a in A], h, [_row(a, row) for a in b])
        found = [[*parts, part] for parts, part in zip(found, h, strict=True)]
    return [lax.concatenate(parts, 0) for parts in found]


def _in_chunks(steps: _Steps, A: Sequence, b: Sequence, h: list, chunks: int) -> list:
    """The values after the first step of each whole chunk, the second, and so on."""
    each = [_of_chunks(i, chunks, A, b) for i in range(CHUNK)]
    factors, added = each[0]
    for late, more in each[1:]:
        factors, added = steps.join(factors, late), steps.after(late, added, more)
    ends = _values(steps, factors, added, h)
    h = [lax.concatenate([a, end[:-1]], 0) for a, end in zip(h, ends, strict=True)]
    found = []
    for factors, added in each[:-1]:
        h = steps.after(factors, h, added)
        found.append(h)
    return [*found, ends]


def _in_turns(parts: Sequence, pads: bool):
    """One array of the rows of several: the first of each, then the second of each."""
    if not pads:
        rows = sum(map(len, parts))
        return jnp.stack(parts, 1).reshape(rows, *parts[0].shape[1:])
    after = [(0, 0, 0)] * (parts[0].ndim - 1)
    last = len(parts) - 1
    padded = (
        lax.pad(part, jnp.zeros((), part.dtype), [(i, last - i, last), *after])
        for i, part in enumerate(parts)
    )
    return functools.reduce(jnp.add, padded)


def _of_chunks(i: int, chunks: int, *lists: Sequence) -> list:
    """Row i of each chunk, of the arrays in lists."""
    stop = chunks * CHUNK
    return [
        [a if len(a) == 1 else lax.slice_in_dim(a, i, stop, CHUNK) for a in arrays]
        for arrays in lists
    ]


def _stepped(A: Sequence, h: Sequence, b: Sequence) -> list:
    """The values after a step: `A h + b`."""
    return [a + late for a, late in zip(_product(A, h), b, strict=True)]


def _in_turn(early: Sequence, late: Sequence) -> list:
    """The factor of two steps in a row."""
    return _product(late, early)


_AFFINE = _Steps(_in_turn, _stepped)


def _together(arrays: Sequence, *sizes: int):
    """One array of several, with axes of these sizes after that of time."""
    value = jnp.stack(jnp.broadcast_arrays(*arrays), 1)
    return value.reshape(len(value), *sizes, *value.shape[2:])


def _multiplied(early: Sequence, late: Sequence) -> list:
    """The factor of two steps in a row, of arrays of matrices `[T, n, n, ...]`."""
    (a,), (b,) = late, early
    return [_times(a[:, :, :, None], b[:, None]).sum(2)]


def _applied(A: Sequence, h: Sequence, b: Sequence) -> list:
    """The values after a step, of arrays of vectors `[T, n, ...]`."""
    (a,), (value,), (added,) = A, h, b
    return [_times(a, value[:, None]).sum(2) + added]


_MATRICES = _Steps(_multiplied, _applied)


def _product(A: Sequence, B: Sequence) -> list:
    """Multiply matrices of arrays, listed row after row; A is square."""
    n = math.isqrt(len(A))
    m = len(B) // n

    def entry(i, j):
        terms = (_times(A[i * n + k], B[k * m + j]) for k in range(n))
        return functools.reduce(jnp.add, terms)

    return [entry(i, j) for i in range(n) for j in range(m)]


@jax.custom_jvp
def _times(factor, value):
    """A product that is zero wherever the factor is zero, even times an infinity."""
    return jnp.where(factor == 0, 0, factor * value).astype(value.dtype)


@_times.defjvp
def _times_jvp(primals, tangents):
    """The derivative by a factor of zero is the value, if that is finite."""
    (factor, value), (d_factor, d_value) = primals, tangents
    lost = (factor == 0) & ~jnp.isfinite(value)
    known, d_known = (jnp.where(lost, 0, v) for v in (value, d_value))
    tangent = d_factor * known + factor * d_known
    return _times(factor, value), tangent.astype(value.dtype)


def _row(array, step: int):
    """The values at a step, `[1, ...]`."""
    return array if len(array) == 1 else lax.slice_in_dim(array, step, step + 1)


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
