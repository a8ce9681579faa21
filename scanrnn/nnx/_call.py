"""A call of a recurrent layer: from the arguments of a user to a scan, and back."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from scanrnn import layers
from scanrnn.cells import Cell
from scanrnn.nnx import _checks, _foreign


class Call(NamedTuple):
    """The arguments of a call, those of the constructor in the place of None."""

    initial_carry: Any
    seq_lengths: Any
    mask: Any
    segment_ids: Any
    resets: Any
    return_carry: bool
    return_all_carries: bool
    include_initial: bool
    time_major: bool
    reverse: bool
    keep_order: bool
    zero_padding: bool
    deterministic: bool
    rngs: Any


def run(rnn: Any, inputs: jax.Array, call: Call) -> Any:
    """What `rnn` returns."""
    _checks.check_rngs(call.rngs)
    inputs = jnp.asarray(inputs)
    feature_axes = _foreign.num_feature_axes(rnn.cell)
    in_features = rnn.in_features or _foreign.num_features(rnn.cell)
    _checks.check_inputs(inputs, in_features, feature_axes)
    shape = inputs.shape[: inputs.ndim - feature_axes]
    time_axis = 0 if call.time_major else len(shape) - 1
    forward, backward = (
        layers.spans(
            shape,
            time_axis,
            seq_lengths=call.seq_lengths,
            mask=call.mask,
            segment_ids=call.segment_ids,
            resets=call.resets,
            reverse=reverse,
        )
        for reverse in (False, True)
    )
    xs = jnp.moveaxis(inputs, time_axis, 0)
    run_it = _run_own if isinstance(rnn.cell, Cell) else _run_foreign
    out = run_it(rnn, xs, (forward, backward), call)
    ys = layers.blank(out.ys, forward.counts) if call.zero_padding else out.ys
    lengths, turned = forward.lengths, call.reverse and not call.keep_order
    ys = layers.turn(ys, lengths) if turned else ys
    ys = jnp.moveaxis(ys, 0, time_axis)
    dtype = rnn.cell.dtype if isinstance(rnn.cell, Cell) else None
    ys = ys if dtype is None else ys.astype(dtype)
    if call.return_all_carries:
        carries = layers.history(
            out, call.reverse, call.include_initial, turned, lengths, time_axis
        )
        return _nested(rnn, carries), ys
    return (_nested(rnn, out.carries), ys) if call.return_carry else ys


def _scan_options(rnn, call):
    return {
        "reverse": call.reverse,
        "all_carries": call.return_all_carries,
        "unroll": rnn.unroll,
        "implementation": rnn.implementation,
    }


def _run_own(rnn, xs, spans, call):
    """The layers of a cell of ours."""
    stack = rnn.stack()
    given = call.initial_carry
    if given is not None:
        given = _grouped(rnn, _checked(rnn, stack, xs, given))
    return layers.run_stack(
        stack,
        xs,
        given,
        spans,
        carry_dtype=rnn.carry_dtype,
        residual=rnn.residual,
        dropout=rnn.dropout,
        key=_noise_key(rnn, stack, xs, call),
        **_scan_options(rnn, call),
    )


def _run_foreign(rnn, xs, spans, call):
    """One layer of a cell of Flax."""
    # One step of the inputs, for its type. Not xs[0]: there may be no steps.
    x = jnp.sum(xs, axis=0)
    first = call.initial_carry
    if first is not None:
        first = _foreign.checked_carry(rnn.cell, x, first)
    # A cell may have no carry of its own; then it cannot start anew.
    fresh = first
    if first is None or spans[0].starts is not None:
        fresh = _foreign.initial_carry(rnn.cell, x, call.rngs)
        first = fresh if first is None else first
    options = _scan_options(rnn, call)
    carry, ys, every = layers.run(
        rnn.cell, first, xs, spans[call.reverse], fresh, **options
    )
    return layers.Stacked(ys, (carry,), (every,), (first,), (False,))


def _checked(rnn, stack, xs, given):
    """The carry that was given, if it is like the cells' own."""
    x = jax.eval_shape(lambda xs: jnp.sum(xs, axis=0), xs)
    wanted = []
    for directions in stack:
        for cell, params in directions:
            zeros = _like(cell, params, x, rnn.carry_dtype)
            wanted.append(zeros)
        features = layers.out_features(rnn.cell, rnn.hidden_features, rnn.bidirectional)
        x = jax.ShapeDtypeStruct((*x.shape[:-1], features), x.dtype)
    return _checks.check_initial_carry(given, _nested(rnn, tuple(wanted)))


def _like(cell, params, x, dtype):
    return jax.eval_shape(lambda p, x: cell.initial_carry(p, x, dtype), params, x)


def _noise_key(rnn, stack, xs, call):
    """What draws noise; None if there is none to draw."""
    if call.deterministic:
        return None
    cell, params = stack[0][0]
    key = jax.eval_shape(lambda: jax.random.key(0))
    quiet = jax.eval_shape(cell.noise, key, params, xs) is None
    if quiet and not (rnn.dropout and rnn.num_layers > 1):
        return None
    if call.rngs is None:
        raise ValueError(
            "RNN: rngs is None, but there is dropout or noise to draw; give the call "
            "rngs=nnx.Rngs(dropout=0), or deterministic=True, or call model.eval()"
        )
    return call.rngs.dropout() if isinstance(call.rngs, nnx.Rngs) else call.rngs()


def _nested(rnn, carries):
    """A tuple of all carries in the structure that a user sees."""
    pairs = carries
    if rnn.bidirectional:
        pairs = tuple(zip(carries[::2], carries[1::2], strict=True))
    return pairs[0] if rnn.num_layers == 1 else pairs


def _grouped(rnn, carry):
    """For each layer its directions, of what a user gave."""
    by_layer = [carry] if rnn.num_layers == 1 else list(carry)
    return by_layer if rnn.bidirectional else [[one] for one in by_layer]
