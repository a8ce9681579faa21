"""The function to export: its arrays have names, and sizes may have names too."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx as flax_nnx
from jax import export

from scanrnn import nnx
from scanrnn.cells._checks import check_dtype, check_flag
from scanrnn.serving import _program_checks as checks


class Input(NamedTuple):
    """The shape and dtype of an input of an exported program.

    Attributes:
        shape: numbers, or names for sizes that are known only at run time. Equal names
            are equal sizes.
        dtype: dtype of the array. An ONNX file takes int64 and float64 also where JAX,
            without its x64 mode, computes in 32 bits: it casts the input.
    """

    shape: tuple[int | str, ...]
    dtype: Any = jnp.float32


class Program(NamedTuple):
    """A function of arrays, with names and types for them.

    Attributes:
        function: takes arrays and returns a list of arrays.
        inputs: a `jax.ShapeDtypeStruct` for each name.
        outputs: names of the results.
    """

    function: Callable
    inputs: dict[str, jax.ShapeDtypeStruct]
    outputs: tuple[str, ...]


def make(
    where: str,
    model: Any,
    inputs: Mapping[str, Any] | None,
    outputs: Sequence[str] | None,
    carry: bool,
    lengths: bool,
) -> Program:
    """The program of a layer, or of any function.

    Args:
        where: name of the public function, for messages.
        model: a layer of `scanrnn.nnx`, or a function.
        inputs: shapes and dtypes by name, in the order of the arguments; or None.
        outputs: names; None for "output", or "output_0" and so on.
        carry: whether the carry of a layer is an input and an output.
        lengths: whether the lengths of the sequences are an input.

    Raises:
        TypeError: if `model` is no function of arrays, `inputs` no mapping, a dtype in
            it none, or `carry` or `lengths` not True or False.
        ValueError: if the other arguments do not fit the model.
    """
    checks.model(where, model)
    check_flag(where, "carry", carry)
    check_flag(where, "lengths", lengths)
    layer = model if isinstance(model, nnx.RNN) else None
    if layer is None and (carry or lengths or inputs is None):
        raise ValueError(
            f"{where}: carry, lengths and inputs=None are for an RNN of scanrnn.nnx, "
            f"such as RNN(cell); for this {type(model).__name__} give inputs="
            "{name: Input(shape, dtype)}"
        )
    specs = _specs(where, _layer_inputs(where, layer) if inputs is None else inputs)
    if layer is None:
        checks.order(where, model, list(specs))
        model = _pure(model)
        names = _output_names(where, model, specs, outputs)
        program = Program(_leaves(model), specs, names)
    else:
        if len(specs) != 1:
            raise ValueError(
                f"{where}: a layer has one input, got {list(specs)}; give inputs one "
                "entry"
            )
        program = _layer(where, layer, specs, outputs, carry, lengths)
    checks.names(where, program.inputs, program.outputs, outputs)
    return program


def _pure(model):
    """A model as a function that may change its state, such as counters of streams."""
    if not isinstance(model, flax_nnx.Module):
        return model
    graphdef, state = flax_nnx.split(model)

    def function(*arrays, **options):
        # New variables, so that the call may write to them.
        own = jax.tree.map(lambda leaf: leaf, state)
        return flax_nnx.merge(graphdef, own)(*arrays, **options)

    return function


def _layer_inputs(where, layer):
    """The input of a layer, with the names that ONNX's users know."""
    if layer.in_features is None or feature_axes(layer) != 1:
        raise ValueError(
            f"{where}: the shape of the inputs of this layer is not known; give "
            'inputs={"input": Input(("batch", "sequence", ...))}'
        )
    axes = ("sequence", "batch") if layer.time_major else ("batch", "sequence")
    return {"input": Input((*axes, layer.in_features))}


def feature_axes(layer: nnx.RNN) -> int:
    """The number of axes of one step that are not batch axes."""
    cell = layer.cell[0] if isinstance(layer.cell, tuple) else layer.cell
    return cell.num_feature_axes


def _specs(where, inputs):
    """The inputs as `jax.ShapeDtypeStruct`s; equal names are equal sizes."""
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"{where}: inputs is a {type(inputs).__name__}, want a dict from the name "
            'of each input to its shape, such as {"input": ("batch", "sequence", 3)}'
        )
    scope, specs = export.SymbolicScope(), {}
    for name, given in inputs.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"{where}: input {name!r} is not a valid name; use letters and digits, "
                "such as 'input'"
            )
        shape, dtype = given if isinstance(given, Input) else Input(given)
        listed = isinstance(shape, Sequence) and not isinstance(shape, str)
        if not listed or not all(map(_is_size, shape)):
            raise ValueError(
                f"{where}: input {name!r} has the shape {shape!r}, want numbers, and "
                'names such as "batch" for sizes that are left open; for a dtype give '
                "scanrnn.serving.Input(shape, dtype)"
            )
        sizes, names = tuple(shape), [one for one in shape if isinstance(one, str)]
        if names:
            text = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            sizes = tuple(export.symbolic_shape(text, scope=scope))
        dtype = check_dtype(where, f"the dtype of input {name!r}", dtype)
        specs[name] = jax.ShapeDtypeStruct(sizes, dtype)
    return specs


def traced(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The type in which JAX takes an input: without its x64 mode, one of 32 bits."""
    return jax.ShapeDtypeStruct(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype))


def _is_size(size):
    """Whether it is a number of elements, or a name for one."""
    if isinstance(size, str):
        return size.isidentifier()
    if export.is_symbolic_dim(size):
        return True
    return hasattr(size, "__index__") and operator.index(size) >= 0


def _leaves(function):
    return lambda *arrays: jax.tree.leaves(function(*arrays))


def _output_names(where, model, specs, outputs):
    try:
        count = len(jax.eval_shape(_leaves(model), *map(traced, specs.values())))
    except Exception as error:
        taken = ", ".join(f"{name} as {spec.dtype}" for name, spec in specs.items())
        way = "for another dtype give scanrnn.serving.Input(shape, dtype)"
        error.add_note(f"{where}: called with {taken}; {way}")
        raise
    if outputs is not None:
        return tuple(outputs)
    return ("output",) if count == 1 else tuple(f"output_{k}" for k in range(count))


def _layer(where, layer, specs, outputs, carry, lengths):
    """The program of a layer. Inputs: `input`, `lengths`, each field of the carry."""
    ((given_name, xs),) = specs.items()
    call = _pure(layer)
    axes = xs.shape[: len(xs.shape) - feature_axes(layer)]
    time_axis = 0 if layer.time_major else len(axes) - 1
    batch = axes[:time_axis] + axes[time_axis + 1 :]

    def run(xs, rest):
        rest = list(rest)
        given: dict[str, Any] = {"deterministic": True}
        if lengths:
            given["seq_lengths"] = rest.pop(0)
        if carry:
            given["initial_carry"] = structure.unflatten(rest)
        return call(xs, return_carry=True, **given)

    first = jax.eval_shape(
        lambda xs: call(xs, return_carry=True, deterministic=True)[0], traced(xs)
    )
    leaves, structure = jax.tree.flatten_with_path(first)
    names = ["_".join(_part(key) for key in path) for path, _ in leaves]
    more = {"lengths": jax.ShapeDtypeStruct(batch, jnp.int32)} if lengths else {}
    if carry:
        for name, (_, leaf) in zip(names, leaves, strict=True):
            more[f"initial_{name}"] = leaf
    if given_name in more:
        raise ValueError(
            f"{where}: inputs has the name {given_name!r}, which carry=True or "
            "lengths=True gives to an input of its own; rename it, such as 'input'"
        )

    def function(xs, *rest):
        last, ys = run(xs, rest)
        return [ys, *(jax.tree.leaves(last) if carry else ())]

    own = ["output", *(f"last_{name}" for name in names if carry)]
    return Program(function, specs | more, tuple(own if outputs is None else outputs))


def _part(key):
    """The name of a field, or the number of a layer, as part of a longer name."""
    return jax.tree_util.keystr((key,), simple=True)


def step_by_step(model: Any) -> Any:
    """A copy of an NNX model whose layers run one by one, by `lax.scan`, unplanned.

    `to_onnx` recognises loops in this form. If you give it an NNX model, it makes the
    copy itself. If you give it a function that calls a model, call the copy there.

    Args:
        model: an NNX module; anything else is returned unchanged.

    Returns:
        The copy.

    Example:
        >>> import scanrnn
        >>> from flax import nnx
        >>> rnn = scanrnn.nnx.GRU(3, 5, rngs=nnx.Rngs(0))
        >>> scanrnn.serving.step_by_step(rnn).implementation
        'scan'
    """
    if not isinstance(model, flax_nnx.Module):
        return model
    model = flax_nnx.clone(model)
    for _, module in flax_nnx.iter_modules(model):
        if isinstance(module, nnx.RNN):
            module.implementation, module.wavefront = "scan", False
    return model
