"""Gathers, scatters and updates of windows, of any form, by places.

The place of an element is its index in the flat array. Along each axis, XLA gives a
coordinate as the sum of two parts: a start, which comes from the indices, and an
offset, which an axis of the outputs (or of the updates) counts. The place is the sum of
all coordinates times their strides. `Gather` and `ScatterElements` take places.
"""

import math

import numpy as np
from jax import lax

from scanrnn.serving._onnx.graph import HALF, Unsupported


def _places(graph, shape, windows, out, starts, counted):
    """The places, and whether windows lie inside: two arrays of the shape `out`.

    Args:
        graph: the graph that gets the nodes.
        shape: the shape of the array.
        windows: the size of a window along each axis of the array.
        out: the shape of what is read or written.
        starts: for axes of the array, int64 values that broadcast to `out`. A start is
            moved so that its window fits into the array.
        counted: for axes of the array, the axis of `out` that counts the offset.
    """
    sum_, inside = graph.constant([0], np.int64), None
    for axis in sorted({*starts, *counted}):
        stride = graph.size(math.prod(shape[axis + 1 :]))
        if axis in starts:
            most = graph.size(shape[axis] - windows[axis])
            moved = graph.op("Min", starts[axis], most)
            moved = graph.op("Max", moved, graph.constant([0], np.int64))
            good = graph.op("Equal", moved, starts[axis])
            inside = graph.op("And", inside, good) if inside else good
            sum_ = graph.op("Add", sum_, graph.op("Mul", moved, stride))
        if axis in counted:
            line = _count(graph, out, counted[axis])
            sum_ = graph.op("Add", sum_, graph.op("Mul", line, stride))
    sizes = graph.shape(out or (1,))
    inside = inside or graph.constant([True])
    return graph.op("Expand", sum_, sizes), graph.op("Expand", inside, sizes)


def _count(graph, shape, axis):
    """0, 1, 2 and so on along one axis of a shape; the other axes have size one."""
    zero, one = (graph.constant(number, np.int64) for number in (0, 1))
    end = graph.op("Squeeze", graph.size(shape[axis]))
    column = [shape[axis] if k == axis else 1 for k in range(len(shape))]
    return graph.reshape(graph.op("Range", zero, end, one), column)


def _indexed(graph, eqn, indices, out, numbers, windows):
    """The places of XLA's indices; `numbers` is a `lax.GatherDimensionNumbers`."""
    shape, indices_shape = (var.aval.shape for var in eqn.invars[:2])
    kept = list(numbers.offset_dims)
    rows = [axis for axis in range(len(out)) if axis not in kept]
    starts, counted = {}, {}
    indices = graph.cast(indices, np.int64)
    axes = graph.constant(kept, np.int64)
    for k, axis in enumerate(numbers.start_index_map):
        one = graph.constant(k, np.int64)
        start = graph.op("Gather", indices, one, axis=len(indices_shape) - 1)
        starts[axis] = graph.op("Unsqueeze", start, axes) if kept else start
    pairs = (numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    counted |= {axis: rows[row] for axis, row in zip(*pairs, strict=True)}
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    whole = [axis for axis in range(len(shape)) if axis not in gone]
    counted |= dict(zip(whole, kept, strict=True))
    return _places(graph, shape, windows, out, starts, counted)


def gather(graph, eqn, x, indices):
    """A gather of any form: windows of any size, from any places."""
    out, numbers = eqn.outvars[0].aval, eqn.params["dimension_numbers"]
    windows = eqn.params["slice_sizes"]
    places, inside = _indexed(graph, eqn, indices, out.shape, numbers, windows)
    flat = graph.reshape(x, [-1])
    found = graph.op("Gather", flat, places, axis=0)
    if eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
        found = graph.where(inside, found, fill(graph, eqn), out.dtype)
    return found if out.shape else graph.reshape(found, ())


def fill(graph, eqn):
    """The value that JAX returns for an element outside of the array."""
    value, dtype = eqn.params["fill_value"], eqn.outvars[0].aval.dtype
    dtype = np.dtype(np.float32) if str(dtype) in HALF else dtype
    if value is None:
        if dtype.kind == "f":
            value = np.nan
        elif dtype.kind == "b":
            value = True
        else:
            limits = np.iinfo(str(dtype))
            value = limits.min if dtype.kind == "i" else limits.max
    return graph.constant(value, dtype)


def _scatter(reduction):
    def rule(graph, eqn, x, indices, updates):
        name = eqn.primitive.name
        if name == "scatter" and eqn.params["update_jaxpr"] is not None:
            raise Unsupported(
                "to_onnx: x.at[...].apply; write x.at[...].set(f(x[...]))"
            )
        theirs, out = eqn.params["dimension_numbers"], eqn.invars[2].aval.shape
        numbers = lax.GatherDimensionNumbers(
            offset_dims=theirs.update_window_dims,
            collapsed_slice_dims=theirs.inserted_window_dims,
            start_index_map=theirs.scatter_dims_to_operand_dims,
            operand_batching_dims=theirs.operand_batching_dims,
            start_indices_batching_dims=theirs.scatter_indices_batching_dims,
        )
        gone = (*theirs.inserted_window_dims, *theirs.operand_batching_dims)
        long = iter(theirs.update_window_dims)
        shape = eqn.invars[0].aval.shape
        windows = [1 if k in gone else out[next(long)] for k in range(len(shape))]
        places, inside = _indexed(graph, eqn, indices, out, numbers, windows)
        if eqn.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
            inside = None
        if name == "scatter-sub":
            updates = graph.op("Neg", updates)
        return _put(graph, eqn, x, updates, places, inside, reduction)

    return rule


def _put(graph, eqn, x, updates, places, inside=None, reduction="none"):
    """The array with the updates in their places; those outside are dropped."""
    aval = eqn.invars[0].aval
    flat, all_ = graph.reshape(x, [-1]), graph.constant([-1], np.int64)
    if inside is not None:  # these go behind the end, which is cut off below
        end = graph.size(math.prod(aval.shape))
        places = graph.op("Where", inside, places, end)
        flat = graph.op("Concat", flat, graph.constant(np.zeros(1, aval.dtype)), axis=0)
    found = graph.op(
        "ScatterElements",
        flat,
        graph.op("Reshape", places, all_),
        graph.op("Reshape", updates, all_),
        axis=0,
        reduction=reduction,
    )
    if inside is not None:
        found = graph.op("Slice", found, graph.constant([0], np.int64), all_)
    return graph.reshape(found, aval.shape)


def _dynamic_update_slice(graph, eqn, x, update, *starts):
    """Overwrite a window, which is moved so that it fits into the array."""
    shape, window = (var.aval.shape for var in eqn.invars[:2])
    begins = {axis: graph.cast(name, np.int64) for axis, name in enumerate(starts)}
    counted = {axis: axis for axis in begins}
    places, _ = _places(graph, shape, window, window, begins, counted)
    return _put(graph, eqn, x, update, places)


RULES = {
    "scatter": _scatter("none"),
    "scatter-add": _scatter("add"),
    "scatter-sub": _scatter("add"),
    "scatter-mul": _scatter("mul"),
    "scatter-max": _scatter("max"),
    "scatter-min": _scatter("min"),
    "dynamic_update_slice": _dynamic_update_slice,
}
