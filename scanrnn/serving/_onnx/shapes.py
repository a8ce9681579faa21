"""Primitives that move numbers, and primitives that reduce axes."""

import jax
import numpy as np
from jax import lax

from scanrnn.serving._onnx import places
from scanrnn.serving._onnx.graph import ELSEWHERE, Graph, Unsupported, info, is_empty


def _ints(values):
    return [int(value) for value in values]


def _broadcast(graph, eqn, x, *sizes):
    del sizes  # of a dynamic shape; the shape of the result has them too
    shape, axes = eqn.outvars[0].aval.shape, eqn.params["broadcast_dimensions"]
    new = [axis for axis in range(len(shape)) if axis not in axes]
    old = eqn.invars[0].aval.shape
    if new:
        x = graph.op("Unsqueeze", x, graph.constant(new, np.int64))
    grown = new or [1 for k, axis in enumerate(axes) if old[k] != shape[axis]]
    return graph.op("Expand", x, graph.shape(shape)) if grown else x


def _reshape(graph, eqn, x, *sizes):
    del sizes
    return graph.reshape(x, eqn.outvars[0].aval.shape)


def _squeeze(graph, eqn, x):
    axes = _ints(eqn.params["dimensions"])
    return graph.op("Squeeze", x, graph.constant(axes, np.int64)) if axes else x


def _transpose(graph, eqn, x):
    return graph.op("Transpose", x, perm=_ints(eqn.params["permutation"]))


def _concatenate(graph, eqn, *xs):
    return graph.op("Concat", *xs, axis=eqn.params["dimension"])


def _stack(graph, eqn, *xs):
    axis = graph.constant([eqn.params["axis"]], np.int64)
    xs = [graph.op("Unsqueeze", x, axis) for x in xs]
    return graph.op("Concat", *xs, axis=eqn.params["axis"])


def _unstack(graph, eqn, x):
    axis, count = eqn.params["axis"], len(eqn.outvars)
    parts = graph.ops("Split", count, x, axis=axis, num_outputs=count)
    axis = graph.constant([axis], np.int64)
    return [graph.op("Squeeze", part, axis) for part in parts]


def _tile(graph, eqn, x):
    return graph.op("Tile", x, graph.shape(eqn.params["reps"]))


def _slice(graph, eqn, x):
    params = eqn.params
    rank = len(params["start_indices"])
    steps = params["strides"] or [1] * rank
    axes = graph.constant(np.arange(rank))
    starts, ends = params["start_indices"], params["limit_indices"]
    vectors = graph.shape(starts), graph.shape(ends), axes, graph.shape(steps)
    return graph.op("Slice", x, *vectors)


def _dynamic_slice(graph, eqn, x, *starts):
    """A window whose start is known only at run time; it is moved so that it fits."""
    sizes, shape = eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    one = graph.constant([1], np.int64)
    begin = [graph.op("Reshape", graph.cast(s, np.int64), one) for s in starts]
    begin = graph.op("Concat", *begin, axis=0) if len(begin) > 1 else begin[0]
    size, full = graph.shape(sizes), graph.shape(shape)
    begin = graph.op("Min", begin, graph.op("Sub", full, size))
    begin = graph.op("Max", begin, graph.constant([0], np.int64))
    axes = graph.constant(np.arange(len(shape)))
    return graph.op("Slice", x, begin, graph.op("Add", begin, size), axes)


def _rev(graph, eqn, x):
    axes = _ints(eqn.params["dimensions"])
    last, before = [-1] * len(axes), [np.iinfo(np.int64).min] * len(axes)
    vectors = [graph.constant(v, np.int64) for v in (last, before, axes, last)]
    return graph.op("Slice", x, *vectors)


def _split(graph, eqn, x):
    sizes = graph.shape(eqn.params["sizes"])
    count = len(eqn.params["sizes"])
    return graph.ops("Split", count, x, sizes, axis=eqn.params["axis"])


def _pad(graph, eqn, x, value):
    config = eqn.params["padding_config"]
    if any(inner for *_, inner in config):
        raise Unsupported(f"to_onnx: pad between elements{ELSEWHERE}")
    edges = [low for low, _, _ in config] + [high for _, high, _ in config]
    return graph.op("Pad", x, graph.shape(edges), value)


def _iota(graph, eqn, *sizes):
    del sizes
    shape, axis = eqn.outvars[0].aval.shape, eqn.params["dimension"]
    scalars = [graph.constant(k, np.int64) for k in (0, 1)]
    end = graph.op("Squeeze", graph.size(shape[axis]))
    line = graph.op("Range", scalars[0], end, scalars[1])
    line = graph.cast(line, eqn.params["dtype"])
    column = [1] * len(shape)
    column[axis] = shape[axis]
    line = graph.reshape(line, column)
    return graph.op("Expand", line, graph.shape(shape)) if len(shape) > 1 else line


def _gather(graph, eqn, x, indices):
    """A gather by the operator `Slice`, `Gather` or `GatherElements` if one fits."""
    numbers, rank = eqn.params["dimension_numbers"], len(eqn.invars[1].aval.shape) - 1
    axes, count = numbers.start_index_map, len(eqn.invars[0].aval.shape)
    fills = eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    if rank == 0 and not fills and not numbers.operand_batching_dims:
        return _window(graph, eqn, x, indices)
    if len(axes) == 1 and tuple(numbers.collapsed_slice_dims) == tuple(axes):
        (axis,) = axes
        others = [k for k in range(count) if k != axis]
        if list(numbers.operand_batching_dims) == others and rank == count:
            if list(numbers.start_indices_batching_dims) == others:
                return _picked(graph, eqn, x, indices, axis, "GatherElements")
        sizes, shape = eqn.params["slice_sizes"], eqn.invars[0].aval.shape
        whole = all(sizes[k] == shape[k] for k in others)
        offsets = [*range(axis), *range(axis + rank, count - 1 + rank)]
        if whole and list(numbers.offset_dims) == offsets:
            return _picked(graph, eqn, x, indices, axis, "Gather")
    return places.gather(graph, eqn, x, indices)


def _window(graph, eqn, x, start):
    """A slice whose start is known only at run time."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    axes, shape = list(numbers.start_index_map), eqn.invars[0].aval.shape
    begin, size = graph.cast(start, np.int64), graph.shape([sizes[k] for k in axes])
    if eqn.params["mode"] != lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        full = graph.shape([shape[k] for k in axes])
        begin = graph.op("Min", begin, graph.op("Sub", full, size))
        begin = graph.op("Max", begin, graph.constant([0], np.int64))
    end = graph.op("Add", begin, size)
    x = graph.op("Slice", x, begin, end, graph.constant(axes, np.int64))
    gone = list(numbers.collapsed_slice_dims)
    return graph.op("Squeeze", x, graph.constant(gone, np.int64)) if gone else x


def _picked(graph, eqn, x, indices, axis, kind):
    """Rows or elements by index. JAX's mode says what an index outside gives."""
    shape, rank = eqn.invars[0].aval.shape, len(eqn.invars[1].aval.shape) - 1
    last = graph.constant([-1], np.int64)
    rows = graph.op("Squeeze", graph.cast(indices, np.int64), last)
    most = graph.op("Squeeze", graph.size(shape[axis]))
    most = graph.op("Sub", most, graph.constant(1, np.int64))
    inside = graph.op("Max", rows, graph.constant(0, np.int64))
    inside = graph.op("Min", inside, most)
    found = graph.op(kind, x, inside, axis=axis)
    if eqn.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return found
    good = graph.op("Equal", rows, inside)
    behind = len(shape) - 1 - axis if kind == "Gather" else 0
    if behind:
        tail = list(range(rank, rank + behind))
        good = graph.op("Unsqueeze", good, graph.constant(tail, np.int64))
    dtype = eqn.outvars[0].aval.dtype
    return graph.where(good, found, places.fill(graph, eqn), dtype)


def _reduce(kind):
    def rule(graph, eqn, x):
        if not eqn.params["axes"]:
            return x  # ONNX would reduce all axes
        axes = graph.constant(_ints(eqn.params["axes"]), np.int64)
        return graph.op(kind, x, axes, keepdims=0)

    return rule


def _reduce_bools(kind):
    def rule(graph, eqn, x):
        if eqn.invars[0].aval.dtype != np.bool_:
            raise Unsupported(f"to_onnx: {eqn.primitive.name} of bits{ELSEWHERE}")
        if not eqn.params["axes"]:
            return x
        axes = graph.constant(_ints(eqn.params["axes"]), np.int64)
        found = graph.op(kind, graph.cast(x, np.int32), axes, keepdims=0)
        return graph.cast(found, np.bool_)

    return rule


def _arg(kind):
    def rule(graph, eqn, x):
        (axis,) = eqn.params["axes"]
        index = graph.op(kind, x, axis=axis, keepdims=0)
        return graph.cast(index, eqn.params["index_dtype"])

    return rule


def _cumsum(graph, eqn, x):
    axis = graph.constant(eqn.params["axis"], np.int64)
    return graph.op("CumSum", x, axis, reverse=int(eqn.params["reverse"]))


def _running(kind):
    """A cumulative maximum, minimum or product: a `Scan` whose step is one node."""

    def rule(graph, eqn, x):
        aval, axis = eqn.outvars[0].aval, eqn.params["axis"]
        if is_empty(aval.shape[axis]):
            return x
        shape = aval.shape[:axis] + aval.shape[axis + 1 :]
        step, reverse = jax.ShapeDtypeStruct(shape, aval.dtype), eqn.params["reverse"]
        if kind == "Mul":
            one = graph.constant(np.ones((), aval.dtype))
            first = graph.op("Expand", one, graph.shape(shape))
        else:
            end = graph.constant(-1 if reverse else 0, np.int64)
            first = graph.op("Gather", x, end, axis=axis)
        body = Graph(graph)
        inputs = [body.name("in") for _ in range(2)]
        new = body.rounded(body.op(kind, *inputs), aval.dtype)
        outs = [body.op("Identity", new) for _ in range(2)]
        types = ([info(name, step) for name in names] for names in (inputs, outs))
        return graph.ops(
            "Scan",
            2,
            first,
            x,
            body=body.proto(graph.name("body"), *types),
            num_scan_inputs=1,
            scan_input_axes=[axis],
            scan_output_axes=[axis],
            scan_input_directions=[int(reverse)],
            scan_output_directions=[int(reverse)],
        )[1]

    return rule


def _top_k(graph, eqn, x):
    k = graph.constant([eqn.params["k"]], np.int64)
    axis = eqn.params.get("axis", -1)
    values, indices = graph.ops("TopK", 2, x, k, axis=axis)
    return [values, graph.cast(indices, eqn.outvars[1].aval.dtype)]


def _dimension(graph, eqn):
    size = graph.op("Squeeze", graph.size(eqn.params["dim"]))
    return graph.cast(size, eqn.outvars[0].aval.dtype)


RULES = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "rev": _rev,
    "split": _split,
    "pad": _pad,
    "iota": _iota,
    "gather": _gather,
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_prod": _reduce("ReduceProd"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_and": _reduce_bools("ReduceMin"),
    "reduce_or": _reduce_bools("ReduceMax"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "cumsum": _cumsum,
    "cummax": _running("Max"),
    "cummin": _running("Min"),
    "cumprod": _running("Mul"),
    "top_k": _top_k,
    "dim_as_value": _dimension,
}
