"""Scan a step over a sequence in which some steps may not count."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn._scan import scan
from scanrnn.cells._placing import where
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

    A step that does not count leaves the carry as it is. So the carry after the last
    step is that of the last step that counts, and no history of carries is needed.

    Args:
        step: `step(carry, x) -> (carry, y)`; with a state `step(state, carry, x) ->
            (state, carry, y)`.
        carry: the carry before the first step.
        xs: arrays `[T, *batch, ...]`, finite where steps do not count: see `blank`.
        spans: which steps count, and before which steps the carry is set to `fresh`.
        fresh: the carry of a sequence that starts.
        state: state that belongs to no single example, such as batch statistics. Every
            step changes it, also those that do not count. None for no state.
        reverse: run from the last step to the first.
        all_carries: whether to return the carry after every step too.
        **scan_options: options of `scanrnn.scan`.

    Returns:
        Four values: the last carry; the outputs `[T, *batch, ...]` in the order of the
        inputs; all carries in the same order, or None; and the last state, or None.
    """
    counts = spans.counts
    starts = spans.starts_backward if reverse else spans.starts

    def spanned(carried, inputs) -> Any:
        state, carry = carried
        x, counted, start = inputs
        if start is not None:
            carry = choose(start, fresh, carry)
        if state is None:
            out = step(carry, x)
            if not isinstance(out, tuple | list) or len(out) != 2:
                return out  # `scan` says what is wrong with it
            new, y = out
        else:
            state, new, y = step(state, carry, x)
        if counted is not None and _types(new) == _types(carry):  # else `scan` says so
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
    """Reverse sequences `[T, *batch, ...]` in time; what follows their end stays."""
    if lengths is None:
        return jax.tree.map(lambda a: jnp.flip(a, axis=0), tree)

    def turned(a):
        check_batched(a, 1 + lengths.ndim)
        steps = jnp.arange(a.shape[0], dtype=lengths.dtype)
        steps = steps.reshape(-1, *(1 for _ in lengths.shape))
        index = jnp.where(steps < lengths, lengths - 1 - steps, steps)
        index = jnp.expand_dims(index, tuple(range(index.ndim, a.ndim)))
        return jnp.take_along_axis(a, index, axis=0)

    return jax.tree.map(turned, tree)


def side_by_side(*directions: jax.Array) -> jax.Array:
    """Concatenate the outputs of both directions on the last axis."""
    return jnp.concatenate(directions, axis=-1)


def blank(tree: Any, counts: jax.Array | None) -> Any:
    """Set arrays `[T, *batch, ...]` to zero where steps do not count."""
    if counts is None:
        return tree
    return jax.tree.map(lambda a: _select(counts, a, jnp.zeros_like(a)), tree)


def choose(condition, ours, theirs):
    """Choose between two carries, for each example of the batch."""
    return jax.tree.map(lambda a, b: _select(condition, a, b), ours, theirs)


def _types(tree):
    """The structure of a tree with the shapes and dtypes of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def _select(condition, a, b):
    check_batched(a, condition.ndim)
    axes = tuple(range(condition.ndim, jnp.ndim(a)))
    return where(jnp.expand_dims(condition, axes), a, b)
