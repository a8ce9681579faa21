"""A step over a sequence of which not every step counts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn._scan import scan
from scanrnn.layers._checks import check_batched
from scanrnn.layers._spans import Spans


def run(
    step: Callable,
    carry: Any,
    xs: Any,
    spans: Spans,
    fresh: Any,
    *,
    state: Any = None,
    reverse: bool = False,
    all_carries: bool = False,
    **scan_options: Any,
) -> tuple[Any, Any, Any, Any]:
    """Scan a step over a sequence.

    Where a step does not count, the carry stays as it is, so that after the last step
    the carry of the last one that counted is there: no history is kept for it.

    Args:
        step: `step(carry, x) -> (carry, y)`; with a state `step(state, carry, x) ->
            (state, carry, y)`.
        carry: before the first step.
        xs: arrays `[T, *batch, ...]`, finite where steps do not count: see `blank`.
        spans: which steps count, and before which the carry is a fresh one.
        fresh: that carry.
        state: what a step carries beside that is no example's own, such as statistics
            of a batch: it goes through every step. None for nothing.
        reverse: run from the last step to the first.
        all_carries: give the carry after every step, too.
        **scan_options: of `scanrnn.scan`.

    Returns:
        The last carry; the outputs `[T, *batch, ...]` in the order of the inputs; all
        carries likewise, or None; and the last state.
    """
    counts = spans.counts
    starts = spans.starts_backward if reverse else spans.starts

    def spanned(carried, inputs):
        state, carry = carried
        x, counted, start = inputs
        if start is not None:
            carry = choose(start, fresh, carry)
        if state is None:
            new, y = step(carry, x)
        else:
            state, new, y = step(state, carry, x)
        if counted is not None:
            new = choose(counted, new, carry)
        return (state, new), (y, new if all_carries else None)

    if counts is None and starts is None and state is None and not all_carries:
        carry, ys = scan(step, carry, xs, reverse=reverse, **scan_options)
        return carry, ys, None, None
    (state, carry), (ys, carries) = scan(
        spanned, (state, carry), (xs, counts, starts), reverse=reverse, **scan_options
    )
    return carry, ys, carries, state


def turn(tree: Any, lengths: jax.Array | None) -> Any:
    """Sequences `[T, *batch, ...]` the other way round; what is behind them stays."""
    if lengths is None:
        return jax.tree.map(lambda a: jnp.flip(a, axis=0), tree)

    def turned(a):
        check_batched(a, 1 + lengths.ndim)
        steps = jnp.arange(a.shape[0]).reshape(-1, *(1 for _ in lengths.shape))
        index = jnp.where(steps < lengths, lengths - 1 - steps, steps)
        index = jnp.expand_dims(index, tuple(range(index.ndim, a.ndim)))
        return jnp.take_along_axis(a, index, axis=0)

    return jax.tree.map(turned, tree)


def side_by_side(*directions: jax.Array) -> jax.Array:
    """The outputs of two directions as one array."""
    return jnp.concatenate(directions, axis=-1)


def blank(tree: Any, counts: jax.Array | None) -> Any:
    """Arrays `[T, *batch, ...]` with zeros where steps do not count."""
    if counts is None:
        return tree
    return jax.tree.map(lambda a: _select(counts, a, jnp.zeros_like(a)), tree)


def choose(condition, ours, theirs):
    """Of two carries, example by example."""
    return jax.tree.map(lambda a, b: _select(condition, a, b), ours, theirs)


def _select(condition, a, b):
    check_batched(a, condition.ndim)
    axes = tuple(range(condition.ndim, jnp.ndim(a)))
    return jnp.where(jnp.expand_dims(condition, axes), a, b)
