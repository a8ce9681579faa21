"""Run cells of Flax, NNX or Linen, in a layer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn.layers._call import Call, Spec, scan_options
from scanrnn.layers._first_carry import (
    check_initial_carry,
    placed_as_inputs,
    sharded_like,
)
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
    """The carry before the first step, and the carry of a sequence that starts.

    As in Flax, the cell's own first carry is made only where it is needed. So a cell
    whose carry is always given needs no `initialize_carry`, and may have one that takes
    other arguments.

    Args:
        cell: the cell.
        given: the carry that a user gave, or None.
        xs: inputs `[T, *batch, ...]`.
        spans: tells whether new sequences start at some steps.
        make: function of one step of the inputs that returns the cell's own carry.

    Raises:
        TypeError: if the structure of `given` is not that of the cell's own carry. A
            cell that is neither of Flax nor of this package is checked only if new
            sequences start at some steps.
        ValueError: if a shape is wrong, likewise; or if the cell's own carry is needed,
            and the cell has none.
    """
    # One step of the inputs, for its shape and dtype; xs[0] fails if T is 0.
    x = jnp.sum(xs, axis=0)
    own = None
    if given is None or spans.starts is not None:
        own = sharded_like(_made(cell, make, x), x, cell.num_feature_axes)
    elif type(cell).__module__.partition(".")[0] in ("flax", "scanrnn"):
        own = jax.eval_shape(make, x)
    if given is None:
        return own, own
    if own is None:
        given = placed_as_inputs(
            jax.tree.map(jnp.asarray, given), x, cell.num_feature_axes
        )
        return given, given
    # The dtype may differ: a cell that computes in a wider dtype than that of its
    # weights needs a wider carry.
    given = check_initial_carry(given, own, same_dtype=False)
    given = placed_as_inputs(given, x, cell.num_feature_axes)
    return given, (own if spans.starts is not None else given)


def _made(cell, make, x):
    """The cell's own carry, if it has one."""
    error = None
    if callable(getattr(cell, "initialize_carry", None)):
        try:
            return make(x)
        except NotImplementedError as raised:  # by Flax's base class
            error = raised
    raise ValueError(
        f"RNN: {type(cell).__name__} has no initialize_carry, and its carry is "
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
    """Run one layer of a Flax cell.

    Args:
        spec: the options of the layer.
        step: `step(state, carry, x) -> (state, carry, y)`.
        state: the state of the cell besides its carry; empty for none.
        carry: the carry before the first step.
        fresh: the carry of a sequence that starts.
        xs: arrays `[T, *batch, ...]`.
        spans: which steps count.
        call: the arguments of the call.

    Returns:
        The last state, and the other results.
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
