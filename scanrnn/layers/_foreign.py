"""Cells of Flax, of either kind, in a layer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn.layers._call import Call, Spec, scan_options
from scanrnn.layers._checks import check_initial_carry
from scanrnn.layers._sequence import run
from scanrnn.layers._spans import Spans
from scanrnn.layers._stack import Stacked


def first_carries(
    cell: Any,
    given: Any,
    xs: jax.Array,
    spans: Spans,
    make: Callable[[jax.Array], Any],
) -> tuple[Any, Any]:
    """The carry before the first step, and that of a step that starts anew.

    As in Flax, a cell is asked for its carry only where it is needed: one whose carry
    is always given may have none of its own, or one made of other arguments.

    Args:
        cell: the cell.
        given: the carry that a user gave, or None.
        xs: inputs `[T, *batch, ...]`.
        spans: whether there are steps that start anew.
        make: gives the cell's own carry, of a step of the inputs.

    Raises:
        TypeError: if the carry that was given has not the structure of the cell's own;
            of a cell that is not Flax's or ours this is known only if it starts anew.
        ValueError: likewise of its shapes; or if the cell has none, and it is needed.
    """
    # One step of the inputs, for its type. Not xs[0]: there may be no steps.
    x = jnp.sum(xs, axis=0)
    own = None
    if given is None or spans.starts is not None:
        own = _sharded_like(_made(cell, make, x), x, cell.num_feature_axes)
    elif type(cell).__module__.partition(".")[0] in ("flax", "scanrnn"):
        own = jax.eval_shape(make, x)
    if given is None:
        return own, own
    if own is None:
        given = jax.tree.map(jnp.asarray, given)
        return given, given
    # A cell that computes in a wider dtype than its weights' needs that in its carry.
    given = check_initial_carry(given, own, same_dtype=False)
    return given, (own if spans.starts is not None else given)


def _made(cell, make, x):
    """The cell's own carry, if it has one."""
    error = None
    if callable(getattr(cell, "initialize_carry", None)):
        try:
            return make(x)
        except NotImplementedError as raised:  # of Flax's base class
            error = raised
    raise ValueError(
        f"RNN: a {type(cell).__name__} has no initialize_carry, and its carry is "
        "needed: give initial_carry, and neither segment_ids nor resets"
    ) from error


def run_foreign(
    spec: Spec,
    step: Callable,
    state: Any,
    carry: Any,
    fresh: Any,
    xs: Any,
    spans: Spans,
    call: Call,
) -> tuple[Any, Stacked]:
    """One layer of a cell of Flax: its last state, and the rest.

    Args:
        spec: the layer's options.
        step: `step(state, carry, x) -> (state, carry, y)`.
        state: what the cell keeps beside its carry; empty for nothing.
        carry: before the first step.
        fresh: the cell's own first one.
        xs: arrays `[T, *batch, ...]`.
        spans: which steps count.
        call: the arguments.
    """
    options = scan_options(spec, call) | {"all_carries": call.return_all_carries}
    if jax.tree.leaves(state):
        last, ys, every, state = run(
            step, carry, xs, spans, fresh, state=state, **options
        )
    else:
        last, ys, every, _ = run(
            lambda carry, x: step(state, carry, x)[1:],
            carry,
            xs,
            spans,
            fresh,
            **options,
        )
    return state, Stacked(ys, (last,), (every,), (carry,), (False,))


def _sharded_like(carry: Any, x: jax.Array, feature_axes: int) -> Any:
    """A carry `[*batch, ...]` with the sharding that `x` has over its batch."""
    features = tuple(range(x.ndim - feature_axes, x.ndim))
    zeros = jnp.zeros_like(jnp.sum(x, axis=features))

    def shard(leaf):
        numbers = not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        if leaf.shape[: zeros.ndim] != zeros.shape or not numbers:
            return leaf
        trailing = tuple(range(zeros.ndim, leaf.ndim))
        return leaf + jnp.expand_dims(zeros, trailing).astype(leaf.dtype)

    return jax.tree.map(shard, carry)
