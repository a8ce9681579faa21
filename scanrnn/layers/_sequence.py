"""A step over a sequence of which not every step counts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn._scan import scan
from scanrnn.layers._spans import Spans


def run(
    step: Callable,
    carry: Any,
    xs: Any,
    spans: Spans,
    fresh: Any,
    *,
    reverse: bool = False,
    all_carries: bool = False,
    **scan_options: Any,
) -> tuple[Any, Any, Any]:
    """Scan a step over a sequence.

    Where a step does not count, the carry stays as it is, so that after the last step
    the carry of the last one that counted is there: no history is kept for it. What the
    inputs hold there, NaN included, is never looked at.

    Args:
        step: `step(carry, x) -> (carry, y)`.
        carry: before the first step.
        xs: arrays `[T, *batch, ...]`.
        spans: which steps count, and before which the carry is a fresh one.
        fresh: that carry.
        reverse: go through time backwards.
        all_carries: give the carry after every step, too.
        **scan_options: of `scanrnn.scan`.

    Returns:
        The last carry; the outputs `[T, *batch, ...]` in the order of the inputs; and
        all carries likewise, or None.
    """
    counts, starts = spans.counts, spans.starts
    if counts is not None:
        xs = jax.tree.map(lambda a: _select(counts, a, jnp.zeros_like(a)), xs)

    def spanned(carry, inputs):
        x, counted, start = inputs
        if start is not None:
            carry = _where(start, fresh, carry)
        new, y = step(carry, x)
        if counted is not None:
            new = _where(counted, new, carry)
        return new, ((y, new) if all_carries else y)

    if counts is None and starts is None and not all_carries:
        carry, ys = scan(step, carry, xs, reverse=reverse, **scan_options)
    else:
        inputs = xs, counts, starts
        carry, ys = scan(spanned, carry, inputs, reverse=reverse, **scan_options)
    ys, carries = ys if all_carries else (ys, None)
    return carry, ys, carries


def turn(a: jax.Array, lengths: jax.Array | None) -> jax.Array:
    """Sequences `[T, *batch, ...]` the other way round; what is behind them stays."""
    if lengths is None:
        return jnp.flip(a, axis=0)
    steps = jnp.arange(len(a)).reshape(-1, *(1 for _ in lengths.shape))
    index = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    index = jnp.expand_dims(index, tuple(range(index.ndim, a.ndim)))
    return jnp.take_along_axis(a, index, axis=0)


def blank(ys: Any, counts: jax.Array | None) -> Any:
    """Outputs with zeros where steps do not count."""
    if counts is None:
        return ys
    return jax.tree.map(lambda a: _select(counts, a, jnp.zeros_like(a)), ys)


def _where(condition, ours, theirs):
    """Of two carries, example by example."""
    return jax.tree.map(lambda a, b: _select(condition, a, b), ours, theirs)


def _select(condition, a, b):
    axes = tuple(range(condition.ndim, jnp.ndim(a)))
    return jnp.where(jnp.expand_dims(condition, axes), a, b)
