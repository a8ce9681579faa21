"""Matrix products and convolutions."""

import string

import numpy as np

from scanrnn.planner.ir import ops
from scanrnn.serving._onnx.graph import ELSEWHERE, Unsupported, type_of


def _dot(graph, eqn, x, y):
    """A product: `MatMul` if y is a matrix without batch axis, else `Einsum`."""
    (x_axes, y_axes), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    ranks = [len(var.aval.shape) for var in eqn.invars]
    dtype = eqn.outvars[0].aval.dtype
    # JAX sums in the dtype of the result, ONNX in the dtype of the operands.
    x, y = (
        name if type_of(var.aval.dtype) == type_of(dtype) else graph.cast(name, dtype)
        for name, var in zip((x, y), eqn.invars, strict=True)
    )
    if not x_batch and ranks[1] == 2 and list(x_axes) == [ranks[0] - 1]:
        if list(y_axes) == [1]:
            y = graph.op("Transpose", y, perm=[1, 0])
        return graph.op("MatMul", x, y)
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in range(ranks[0])]
    right = [""] * ranks[1]
    pairs = zip((*x_axes, *x_batch), (*y_axes, *y_batch), strict=True)
    for mine, theirs in pairs:
        right[theirs] = left[mine]
    right = [letter or next(letters) for letter in right]
    out = [left[axis] for axis in x_batch]
    out += [k for axis, k in enumerate(left) if axis not in (*x_axes, *x_batch)]
    out += [k for axis, k in enumerate(right) if axis not in (*y_axes, *y_batch)]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    return graph.op("Einsum", x, y, equation=equation)


def _conv(graph, eqn, x, kernel):
    """A convolution, with axes in ONNX's order: N C spatial, and O I spatial."""
    params = eqn.params
    numbers = params["dimension_numbers"]
    if any(size != 1 for size in params["lhs_dilation"]):
        raise Unsupported(f"to_onnx: a convolution with lhs_dilation{ELSEWHERE}")
    if params["batch_group_count"] != 1:
        raise Unsupported(f"to_onnx: a convolution with batch_group_count{ELSEWHERE}")
    x = graph.op("Transpose", x, perm=list(numbers.lhs_spec))
    kernel = graph.op("Transpose", kernel, perm=list(numbers.rhs_spec))
    pads = params["padding"]
    found = graph.op(
        "Conv",
        x,
        kernel,
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        pads=[int(low) for low, _ in pads] + [int(high) for _, high in pads],
        group=params["feature_group_count"],
    )
    return graph.op("Transpose", found, perm=np.argsort(numbers.out_spec).tolist())


# The second is the matrix product in loops that the planner made.
RULES = {"dot_general": _dot, ops.PRODUCT: _dot, "conv_general_dilated": _conv}
