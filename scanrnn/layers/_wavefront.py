"""Run equal layers side by side as a wavefront, each one step behind the one below.

At tick k, layer l computes step k - l. Its input is what the layer below computed at
tick k - 1. The products of all layers at one tick are one batched matrix product. So
the launches are fewer and larger: T + L - 1 in place of T L.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn import machines
from scanrnn._scan import EXECUTORS, scan
from scanrnn.layers._first_carry import begun
from scanrnn.layers._sequence import choose
from scanrnn.layers._spans import Spans
from scanrnn.layers._stack import Layer, Stacked, check_array, check_width, skips

Stack = Sequence[Sequence[Layer]]


def refuse(
    places: Sequence[Any],
    layers: Stack,
    xs: jax.Array,
    noisy: bool,
    all_carries: bool,
) -> str | None:
    """Why layers cannot run side by side, or None if they can."""
    if len(layers) < 2:
        return "there is one layer"
    if len(layers[0]) > 1:
        return "a layer waits for the last step of the one below: bidirectional=True"
    if noisy:
        return "there is noise to draw for each layer"
    if all_carries:
        return "return_all_carries=True"
    # The parameters of a user's cell need not show the size of its inputs.
    kinds = {
        (place.in_features, layer.cell, _shapes(layer.params))
        for place, (layer,) in zip(places, layers, strict=True)
    }
    if len(kinds) > 1:
        return "the layers differ in their cells or sizes"
    length = xs.shape[0]
    return None if isinstance(length, int) and length else f"there are {length} steps"


def pays(layers: Stack, xs: jax.Array) -> bool:
    """Whether a launch takes longer than the matrix products of one step of a layer."""
    machine = machines.machine_of([xs])
    rules = EXECUTORS["planned"].rules(machine)
    size = sum(a.size for a in layers[0][0].params.values() if a.ndim > 1)
    rows = xs.size // max(1, xs.shape[0] * xs.shape[-1])
    return rules.runs_side_by_side(machine, 2 * rows * size, str(xs.dtype))


def run_wavefront(
    layers: Stack,
    xs: jax.Array,
    carries: Sequence[Sequence[Any]] | None,
    spans: Spans,
    *,
    sizes: Sequence[int],
    carry_dtype: Any,
    residual: bool | str,
    reverse: bool,
    **scan_options: Any,
) -> Stacked:
    """Run layers that `refuse` does not refuse; arguments and result as `run_stack`."""
    cell, count, T = layers[0][0].cell, len(layers), xs.shape[0]
    params = _stacked([layer.params for (layer,) in layers])
    x = jnp.sum(xs, axis=0)
    fresh = jax.vmap(lambda p: cell.initial_carry(p, x, carry_dtype))(params)
    given = None if carries is None else _stacked([one for (one,) in carries])
    begin = begun(given, fresh)
    starts = spans.starts_backward if reverse else spans.starts
    # For each tick: the step that each layer computes, and whether that step exists.
    made = jnp.arange(T + count - 1)[:, None] - jnp.arange(count)[None]
    inside = (made >= 0) & (made < T)
    made = jnp.clip(made, 0, T - 1)
    rows = T - 1 - made if reverse else made
    batch_axes = x.ndim - cell.num_feature_axes
    inside = jnp.expand_dims(inside, tuple(range(2, 2 + batch_axes)))
    counts = inside if spans.counts is None else inside & spans.counts[rows]
    starts = None if starts is None else starts[rows] & inside
    fed = jnp.pad(
        jnp.flip(xs, 0) if reverse else xs, [(0, count - 1)] + [(0, 0)] * x.ndim
    )
    features = x.shape[-1]
    skip = [skips(residual, i, (features, features)) for i in range(count)]

    def tick(state, inputs):
        carry, ys = state
        x, counted, start = inputs
        below = jnp.concatenate([x[None].astype(wide), ys[:-1].astype(wide)])
        if start is not None:
            carry = choose(start, fresh, carry)
        new, ys = jax.vmap(cell.step)(params, carry, below)
        if any(skip):
            added = jnp.array(skip, ys.dtype).reshape(-1, *(1,) * x.ndim)
            ys = ys + below.astype(ys.dtype) * added
        return (choose(counted, new, carry), ys), ys[-1]

    types = jax.eval_shape(jax.vmap(cell.step), params, begin, _stacked([x] * count))
    check_array(0, types[1])
    check_width(0, cell, sizes[0], types[1])
    zeros = jnp.zeros_like(jnp.broadcast_to(x, (count, *x.shape)), types[1].dtype)
    with jax.numpy_dtype_promotion("standard"):
        wide = jnp.promote_types(x.dtype, zeros.dtype)
    (last, _), ys = scan(tick, (begin, zeros), (fed, counts, starts), **scan_options)
    ys = ys[count - 1 :]
    return Stacked(
        jnp.flip(ys, 0) if reverse else ys,
        _apart(last, count),
        None,
        _apart(begin, count),
        (False,) * count,
    )


def _shapes(params):
    return tuple((k, v.shape, v.dtype) for k, v in sorted(params.items()))


def _stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _apart(tree, count):
    return tuple(jax.tree.map(lambda a, i=i: a[i], tree) for i in range(count))
