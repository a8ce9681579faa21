"""An ONNX graph, to which nodes are added."""

import ast
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scanrnn.serving._size import check_size

# onnxruntime 1.18 and later read these versions. By default, onnx writes newer ones.
OPSET, IR_VERSION = 20, 9
_TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
    # Runtimes have few operators for half types, and their results differ. So numbers
    # of a half type are stored as float32 and rounded after every operation.
    "bfloat16": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT,
}
HALF = {"bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16}
# The dtypes that onnxruntime's `Where` takes, besides the half types.
_CHOSEN = {"float32", "float64", "int32", "int64", "uint8"}


# The way out, at the end of an error message.
ELSEWHERE = "; compute it outside of what is exported, or use to_stablehlo"


class Unsupported(ValueError):
    """Something in the program has no ONNX form."""


def type_of(dtype: Any) -> int:
    """ONNX's number for the dtype of an array in the graph; raise if it has none."""
    try:
        return _TYPES[str(jnp.dtype(dtype))]
    except KeyError:
        raise Unsupported(
            f"to_onnx: an array has dtype {dtype}, which ONNX does not have; cast it"
        ) from None


class Graph:
    """The nodes of one scope, in order. The outermost graph has constants and sizes.

    Args:
        parent: the graph around this one, if this one is the body of a node.
    """

    def __init__(self, parent: "Graph | None" = None):
        """Start without nodes."""
        self.root: Graph = parent.root if parent else self
        self.nodes: list[onnx.NodeProto] = []
        if parent is None:
            self.count = 0
            self.constants: dict[str, np.ndarray] = {}
            self.known: dict[tuple, str] = {}
            self.sizes: dict[str, str] = {}

    def name(self, hint: str = "v") -> str:
        """A new name. It starts with a slash, so no name of a user equals it."""
        self.root.count += 1
        return f"/{hint}_{self.root.count}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, and return the name of the output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return the names of the outputs."""
        outs = [self.name(kind.lower()) for _ in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outs, **attributes))
        return outs

    def constant(self, value: Any, dtype: Any = None) -> str:
        """The name of a constant. Equal constants have the same name."""
        if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
            raise Unsupported(
                "to_onnx: the model holds a random key, which ONNX does not have; take "
                "random streams out of it, such as those of dropout"
            )
        array = np.asarray(value, dtype)
        if str(array.dtype) in HALF:
            array = array.astype(np.float32)
        type_of(array.dtype)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self.root.known:
            name = self.name("weight" if array.size > 16 else "constant")
            self.root.known[key] = name
            self.root.constants[name] = array
        return self.root.known[key]

    def value(self, name: str) -> np.ndarray | None:
        """The constant with this name; None if there is none."""
        return self.root.constants.get(name)

    def cast(self, name: str, dtype: Any) -> str:
        """The value in another dtype."""
        return self.op("Cast", name, to=type_of(dtype))

    def where(self, which: str, yes: str, no: str, dtype: Any) -> str:
        """`yes` where `which` is true, else `no`; cast if `Where` lacks the dtype."""
        kind = str(dtype)
        if kind in _CHOSEN or kind in HALF:
            return self.op("Where", which, yes, no)
        wide = np.uint8 if kind == "bool" else np.int64
        yes, no = self.cast(yes, wide), self.cast(no, wide)
        return self.cast(self.op("Where", which, yes, no), dtype)

    def rounded(self, name: str, dtype: Any) -> str:
        """The value, rounded if `dtype` is a half type."""
        if str(dtype) not in HALF:
            return name
        half = self.op("Cast", name, to=HALF[str(dtype)])
        return self.op("Cast", half, to=TensorProto.FLOAT)

    def reshape(self, name: str, dims: Any) -> str:
        """The value in another shape."""
        return self.op("Reshape", name, self.shape(dims), allowzero=1)

    def shape(self, dims: Any) -> str:
        """A vector of sizes. Some of them may be symbolic."""
        dims = list(dims)
        if all(isinstance(dim, int | np.integer) for dim in dims):
            return self.constant(dims, np.int64)
        parts = [self.size(dim) for dim in dims]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def size(self, dim: Any) -> str:
        """A size, as a vector of length one."""
        if isinstance(dim, int | np.integer):
            return self.constant([dim], np.int64)
        # JAX prints a symbolic size as an expression of names and integers, with ^ for
        # powers, which Python would read as an operator that binds less than a sum.
        text = str(dim).replace("^", "**")
        return self._expression(ast.parse(text, mode="eval").body, dim)

    def _expression(self, node, dim):
        if isinstance(node, ast.Constant):
            return self.constant([node.value], np.int64)
        if isinstance(node, ast.Name) and node.id in self.root.sizes:
            return self.root.sizes[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.op("Neg", self._expression(node.operand, dim))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            sides = (self._expression(side, dim) for side in (node.left, node.right))
            return self._joined(_OPERATORS[type(node.op)], *sides)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if kind := _FUNCTIONS.get(node.func.id):
                args = (self._expression(a, dim) for a in node.args)
                return self._joined(kind, *args)
        raise Unsupported(f"to_onnx: cannot write the size {dim}; give a number")

    def _joined(self, kind, *sides):
        """A node for an operator. JAX rounds quotients down, and ONNX towards zero."""
        if kind == "Div":
            rest = self.op("Mod", *sides)  # it has the sign of the divisor, as in JAX
            sides = self.op("Sub", sides[0], rest), sides[1]
        return self.op(kind, *sides)

    def proto(self, name: str, inputs: list, outputs: list) -> onnx.GraphProto:
        """The finished graph, without nodes that no output needs."""
        needed = {info.name for info in outputs}
        nodes = []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.append(node)
                needed |= set(_reads(node))
        nodes.reverse()
        arrays = self.constants if self.root is self else {}
        arrays = {k: array for k, array in arrays.items() if k in needed}
        check_size("to_onnx", sum(array.nbytes for array in arrays.values()))
        tensors = [
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), k)
            for k, array in arrays.items()
        ]
        return helper.make_graph(nodes, name, inputs, outputs, tensors)


_OPERATORS = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.FloorDiv: "Div",
    ast.Mod: "Mod",
    ast.Pow: "Pow",
}
_FUNCTIONS = {"floordiv": "Div", "mod": "Mod", "max": "Max", "min": "Min"}


def _reads(node):
    """All names that a node and its bodies read."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for inner in attribute.g.node:
                yield from _reads(inner)
            yield from (info.name for info in attribute.g.output)


def info(name: str, aval: Any) -> onnx.ValueInfoProto:
    """The type and shape of a value. Sizes that are expressions are left open."""
    dims = []
    for dim in aval.shape:
        fixed = isinstance(dim, int | np.integer)
        text = int(dim) if fixed else str(dim)
        dims.append(text if fixed or str(text).isidentifier() else None)
    return helper.make_tensor_value_info(name, type_of(aval.dtype), dims)


def is_floating(aval: Any) -> bool:
    """Whether a value has a floating-point dtype."""
    return jnp.issubdtype(aval.dtype, jnp.floating)


def is_empty(size: Any) -> bool:
    """Whether a size is zero, and not open. onnxruntime has no loop of no steps."""
    return isinstance(size, int | np.integer) and size == 0
