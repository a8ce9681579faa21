"""The values after each step of a scan with an associative operation.

**In chunks**: first the steps of each chunk are joined to one step, in all chunks at
once. Then a shorter scan over these joined steps finds the value before each chunk.
Last, the steps of each chunk run again from there.

**In blocks**: the same with a few long chunks. The steps of a block are scanned by a
scan in chunks, in all blocks at once. So it is time that fills the lanes of a TPU,
where a step has too few numbers for that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from scanrnn.executors.parallel.operation import Operation, rows_of
from scanrnn.planner.rule_groups import ScanRules


def values(
    operation: Operation, A: Sequence, b: Sequence, start: Sequence, rules: ScanRules
) -> list:
    """The values after each step.

    Args:
      operation: how steps are joined.
      A: arrays of factors `[T, ...]`, or of size 1 along an axis.
      b: arrays of addends `[T, ...]`.
      start: arrays `[1, ...]` without constant axes, the values before the first step.
      rules: which form a scan takes.

    Returns:
      Arrays `[T, ...]`, as many as in `b`.
    """
    length, numbers = len(b[0]), start[0].size
    if rules.in_blocks(length, numbers):
        return _in_blocks(operation, A, b, start, rules)
    if rules.in_pairs(length, numbers):
        return _in_chunks(operation, A, b, start, 2, length.bit_length())
    return _in_chunks(operation, A, b, start, rules.joined, int(rules.pads))


def _in_chunks(
    operation: Operation, A: Sequence, b: Sequence, h: Sequence, chunk: int, padded: int
) -> list:
    """The values after each step, from h on, in chunks of so many steps.

    `padded` says in how many scans, the longest first, the values of all steps are a
    sum of padded arrays.
    """
    length = len(b[0])
    whole = length - length % chunk if length > chunk else 0
    found = [[] for _ in b]
    if whole:
        cuts = [(i, whole, chunk) for i in range(chunk)]
        each = [(rows_of(A, *cut), rows_of(b, *cut)) for cut in cuts]
        factors, added = functools.reduce(operation.as_one, each)
        ends = _in_chunks(operation, factors, added, h, chunk, max(padded - 1, 0))
        in_turn = zip(*_within(operation, each, h, ends), strict=True)
        parts = [_in_turns(of_leaf, bool(padded)) for of_leaf in in_turn]
        h = [part[-1:] for part in parts]
        found = [[part] for part in parts]
    for row in range(whole, length):
        h = operation.after(rows_of(A, row, row + 1), h, rows_of(b, row, row + 1))
        found = [[*parts, part] for parts, part in zip(found, h, strict=True)]
    return [lax.concatenate(parts, 0) for parts in found]


def _within(operation: Operation, each: Sequence, h: Sequence, ends: list) -> list:
    """The values after the first step of each chunk, after the second, and so on.

    `each` has the factors and the addends of these steps, `ends` the values after each
    chunk.
    """
    h, found = _before(h, ends), []
    for factors, added in each[:-1]:
        h = operation.after(factors, h, added)
        found.append(h)
    return [*found, ends]


def _before(h: Sequence, ends: Sequence) -> list:
    """The values before each chunk or block: h, then those after the one before it."""
    return [lax.concatenate([a, end[:-1]], 0) for a, end in zip(h, ends, strict=True)]


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


def _in_blocks(
    operation: Operation, A: Sequence, b: Sequence, h: Sequence, rules: ScanRules
) -> list:
    """The values after each step, from h on, in blocks side by side."""
    assert rules.blocks is not None
    length, (count, *_) = len(b[0]), rules.blocks
    A, b = ([_side_by_side(a, count) for a in of] for of in (A, b))
    factors, added = (
        [_first_axis(a[0]) for a in of] for of in _as_one(operation, A, b)
    )
    ends = values(operation, factors, added, h, rules)
    h = [jnp.moveaxis(a, 0, -1)[None] for a in _before(h, ends)]
    found = values(operation, A, b, h, rules)
    return [_first_axis(a).reshape(-1, *a.shape[1:-1])[:length] for a in found]


def _side_by_side(array, count: int):
    """The steps of all blocks, `[T / count, ..., count]`; zeros at the end.

    What zeros do there is not read: it comes after all steps.
    """
    if len(array) == 1:
        return array[..., None]
    fill = -len(array) % count
    array = jnp.pad(array, [(0, fill), *[(0, 0)] * (array.ndim - 1)])
    return jnp.moveaxis(array.reshape(count, -1, *array.shape[1:]), 0, -1)


def _first_axis(array):
    """The axis of blocks is the first one."""
    return jnp.moveaxis(array, -1, 0)


def _as_one(
    operation: Operation, A: Sequence, b: Sequence
) -> tuple[Sequence, Sequence]:
    """All steps joined to one: its factors and its addends, `[1, ...]`."""

    def some(*which: int):
        return rows_of(A, *which), rows_of(b, *which)

    rest = None
    while (length := len(b[0])) > 1:
        even = length - length % 2
        if even < length:
            last = some(even, length)
            rest = operation.as_one(last, rest) if rest else last
        A, b = operation.as_one(some(0, even, 2), some(1, even, 2))
    return operation.as_one((A, b), rest) if rest else (A, b)
