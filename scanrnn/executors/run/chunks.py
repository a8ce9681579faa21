"""Run a sequence in chunks of steps; the carry goes from one chunk to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import lax

from scanrnn.planner.passes.wide_sums import rounded, wide_type


def in_chunks(
    programs: Sequence[Callable],
    sizes: tuple[int, int],
    reverse: bool,
    weights: list,
    carry: list,
    xs: list,
):
    """Run `program(weights, carry, xs)` on chunks of a sequence, in order.

    The work before, in and after the loop is then done for each chunk. So its arrays
    have few steps and stay in the cache. There is a second program, for the rest, if
    chunks do not divide the sequence. `sizes` are the number of steps of the sequence,
    and of a chunk. Cotangents of weights are summed in float32 or wider.
    """
    length, size = sizes
    count, rest = divmod(length, size)
    # The rest, which does not fill a chunk, comes last in the order of the loop.
    cut = rest if reverse else count * size
    head, tail = ([x[:cut] for x in xs], [x[cut:] for x in xs])
    whole, left = (tail, head) if reverse else (head, tail)
    # Beside an axis of size 1, XLA for CPU copies the whole array.
    single = size == 1
    chunks = whole
    if not single:
        chunks = [x.reshape(count, size, *x.shape[1:]) for x in whole]
    types = list(map(jax.typeof, weights))
    weights = list(map(rounded, weights, map(wide_type, types)))

    def run(program, carry, xs):
        return program(list(map(rounded, weights, types)), carry, xs)

    def chunk(carry, xs):
        xs = [x[None] for x in xs] if single else xs
        carry, ys = run(programs[0], carry, xs)
        return carry, [y[0] for y in ys] if single else ys

    carry, ys = lax.scan(chunk, carry, chunks, count, reverse=reverse)
    if not single:
        ys = [y.reshape(count * size, *y.shape[2:]) for y in ys]
    if not rest:
        return carry, ys
    carry, last = run(programs[1], carry, left)
    pairs = zip(last, ys, strict=True) if reverse else zip(ys, last, strict=True)
    return carry, [lax.concatenate(pair, 0) for pair in pairs]
