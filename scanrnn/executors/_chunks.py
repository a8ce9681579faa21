"""Run a sequence in chunks of steps, carrying over from one to the next."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from scanrnn.planner import ops


def in_chunks(run: Callable, size: int, weights, carry, xs, length: int, reverse: bool):
    """`run(weights, carry, xs, length)` on chunks of `size` steps, in order.

    What `run` does before, in and after its loop it then does per chunk, so that
    its arrays are of `size` steps and stay in the cache.
    """
    count, rest = divmod(length, size)
    # The part that does not fill a chunk comes last in the order of the loop.
    cut = rest if reverse else count * size
    head, tail = ([x[:cut] for x in xs], [x[cut:] for x in xs])
    whole, left = (tail, head) if reverse else (head, tail)
    chunks = [x.reshape(count, size, *x.shape[1:]) for x in whole]
    carry, ys = lax.scan(
        lambda c, x: run(weights, c, x, size), carry, chunks, count, reverse=reverse
    )
    ys = [y.reshape(count * size, *y.shape[2:]) for y in ys]
    if not rest:
        return carry, ys
    carry, last = run(weights, carry, left, rest)
    pairs = zip(last, ys, strict=True) if reverse else zip(ys, last, strict=True)
    return carry, [lax.concatenate(pair, 0) for pair in pairs]


def rematerialised(run: Callable) -> Callable:
    """`run`, keeping only its inputs for the reverse pass."""

    def again(weights, carry, xs, length):
        keep = jax.checkpoint(
            lambda *args: run(*args, length),
            prevent_cse=False,
            policy=ops.keep_inputs,
        )
        return keep(weights, carry, xs)

    return again
