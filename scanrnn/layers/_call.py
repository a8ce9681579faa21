"""The call of a recurrent layer: from its arguments to a scan, and to its result."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.layers import _checks, _wavefront
from scanrnn.layers._cell import is_noisy
from scanrnn.layers._first_carry import check_initial_carry
from scanrnn.layers._sequence import blank, turn
from scanrnn.layers._spans import Spans, spans
from scanrnn.layers._stack import Layer, Place, Stacked, history, run_stack


class Spec(NamedTuple):
    """The options of a layer that its call needs; see `scanrnn.nnx.RNN`."""

    num_layers: int = 1
    bidirectional: bool = False
    residual: Any = False
    dropout: float = 0.0
    carry_dtype: Any = None
    unroll: Any = 1
    implementation: Any = None
    wavefront: bool | None = None


class Call(NamedTuple):
    """The arguments of a call but the inputs; see `scanrnn.nnx.RNN`."""

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


# Arguments that are also attributes of a layer, used where a call gives None.
_OWN = ("return_carry", "time_major", "reverse", "keep_order", "zero_padding")


def make_call(module: Any, **given: Any) -> Call:
    """Collect the arguments of a call, with attributes of the layer in place of None.

    Args:
        module: the layer.
        **given: the arguments that the user gave: all fields of `Call`.

    Raises:
        TypeError: if an argument that is True or False is neither.
        ValueError: if `include_initial` is given without `return_all_carries`.
    """
    own = {name: getattr(module, name) for name in _OWN if given[name] is None}
    call = Call(**given | own)
    _checks.check_call(call)
    return call


def call_layers(
    spec: Spec,
    inputs: jax.Array,
    call: Call,
    run_cells: Callable[[jax.Array, Spans], Stacked],
    *,
    in_features: int | None,
    feature_axes: int,
    dtype: Any,
) -> Any:
    """Run the cells of a layer, and return what the call of the layer returns.

    Outputs are a pytree of arrays: a cell may return logits and attention weights.

    Args:
        spec: the options of the layer.
        inputs: the inputs of the call.
        call: all other arguments of the call.
        run_cells: function of the inputs `[T, *batch, ...]`, blank where steps do not
            count, and of the `Spans`. It returns a `Stacked`.
        in_features: the wanted size of the last axis; None if it is not known.
        feature_axes: number of the last axes that are the features of a step.
        dtype: dtype of floating-point outputs; None to leave it as it is.
    """
    inputs = _checks.as_array(inputs)
    _checks.check_inputs(inputs, in_features, feature_axes)
    shape = inputs.shape[: inputs.ndim - feature_axes]
    time_axis = 0 if call.time_major else len(shape) - 1
    marks = spans(
        shape,
        time_axis,
        seq_lengths=call.seq_lengths,
        mask=call.mask,
        segment_ids=call.segment_ids,
        resets=call.resets,
    )
    out = run_cells(blank(jnp.moveaxis(inputs, time_axis, 0), marks.counts), marks)
    ys = blank(out.ys, marks.counts) if call.zero_padding else out.ys
    turned = call.reverse and not call.keep_order
    ys = turn(ys, marks.lengths) if turned else ys
    ys = jax.tree.map(lambda a: _placed(a, time_axis, dtype), ys)
    if call.return_all_carries:
        carries = history(
            out, call.reverse, call.include_initial, turned, marks.lengths, time_axis
        )
        return _nested(spec, carries), ys
    return (_nested(spec, out.carries), ys) if call.return_carry else ys


def _placed(ys, time_axis, dtype):
    """Outputs with the time axis of the inputs; floats in `dtype`, if it is given."""
    _checks.check_batched(ys, 1 + time_axis)
    ys = jnp.moveaxis(ys, 0, time_axis)
    cast = dtype is not None and jnp.issubdtype(ys.dtype, jnp.floating)
    return ys.astype(dtype) if cast else ys


def scan_options(spec: Spec, call: Call) -> dict[str, Any]:
    """The options of `scanrnn.scan` for the loops of a layer."""
    return {
        "reverse": call.reverse,
        "unroll": spec.unroll,
        "implementation": spec.implementation,
    }


def run_own(
    spec: Spec,
    places: list[Place],
    stack: list[list[Layer]],
    inputs: jax.Array,
    call: Call,
    draw_key: Callable[[], jax.Array] | None,
) -> Any:
    """Run layers of `scanrnn.cells`, and return what the call returns.

    Args:
        spec: the options of the layers.
        places: the layers, from the first to the last.
        stack: the cells and weights of the layers, in the same order.
        inputs: the inputs of the call.
        call: all other arguments of the call.
        draw_key: returns the PRNG key of all noise. It is called only if there is noise
            to draw. None for no noise.
    """

    def run_cells(xs, spans):
        given = call.initial_carry
        if given is not None:
            given = _grouped(spec, _checked(spec, places, stack, xs, given))
        noisy = draw_key is not None and _has_noise(spec, places, stack, xs)
        options = scan_options(spec, call)
        options |= {"carry_dtype": spec.carry_dtype, "residual": spec.residual}
        options["sizes"] = [place.hidden_features for place in places]
        if _side_by_side(spec, places, stack, xs, noisy, call):
            return _wavefront.run_wavefront(stack, xs, given, spans, **options)
        return run_stack(
            stack,
            xs,
            given,
            spans,
            dropout=spec.dropout,
            key=draw_key() if noisy and draw_key else None,
            all_carries=call.return_all_carries,
            **options,
        )

    last = places[-1].cell
    return call_layers(
        spec,
        inputs,
        call,
        run_cells,
        in_features=places[0].in_features,
        feature_axes=last.num_feature_axes,
        dtype=last.dtype,
    )


def _side_by_side(spec, places, stack, xs, noisy, call):
    """Whether the layers run as a wavefront."""
    if spec.wavefront is False:
        return False
    reason = _wavefront.refuse(places, stack, xs, noisy, call.return_all_carries)
    empty = isinstance(xs.shape[0], int) and xs.shape[0] == 0
    if spec.wavefront and reason is not None and not empty:
        raise ValueError(
            f"RNN: wavefront=True, but {reason}; leave wavefront=None, and layers run "
            "one after the other"
        )
    return reason is None and bool(spec.wavefront or _wavefront.pays(stack, xs))


def _has_noise(spec, places, stack, xs):
    """Whether the layers draw random numbers in training."""
    if spec.dropout and spec.num_layers > 1:
        return True
    for place, directions in zip(places, stack, strict=True):
        if any(is_noisy(cell, params, xs) for cell, params in directions):
            return True
        xs = jax.ShapeDtypeStruct((*xs.shape[:-1], place.out_features), xs.dtype)
    return False


def _checked(spec, places, stack, xs, given):
    """The given carry as arrays; raise unless it is like the cells' own."""
    x = jax.eval_shape(lambda xs: jnp.sum(xs, axis=0), xs)
    wanted = []
    for place, directions in zip(places, stack, strict=True):
        for cell, params in directions:
            wanted.append(_like(cell, params, x, spec.carry_dtype))
        x = jax.ShapeDtypeStruct((*x.shape[:-1], place.out_features), x.dtype)
    return check_initial_carry(given, _nested(spec, tuple(wanted)))


def _like(cell, params, x, dtype):
    return jax.eval_shape(lambda p, x: cell.initial_carry(p, x, dtype), params, x)


def _nested(spec, carries):
    """The tuple of all carries, in the structure that a user sees."""
    pairs = carries
    if spec.bidirectional:
        pairs = tuple(zip(carries[::2], carries[1::2], strict=True))
    return pairs[0] if spec.num_layers == 1 else pairs


def _grouped(spec, carry):
    """The carry that a user gave, as a list of directions for each layer."""
    by_layer = [carry] if spec.num_layers == 1 else list(carry)
    return by_layer if spec.bidirectional else [[one] for one in by_layer]
