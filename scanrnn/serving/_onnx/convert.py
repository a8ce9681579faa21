"""Convert a traced program equation by equation, with its loops and calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
from jax.extend import core
from onnx import helper

from scanrnn.planner.ir import compat, ops
from scanrnn.serving._onnx import elementwise, native, places, products, shapes
from scanrnn.serving._onnx.graph import (
    ELSEWHERE,
    IR_VERSION,
    OPSET,
    Graph,
    Unsupported,
    info,
    is_empty,
)
from scanrnn.serving._onnx.integers import widened
from scanrnn.serving._program import traced

RULES = elementwise.RULES | shapes.RULES | places.RULES | products.RULES
RULES = {name: widened(name, rule) for name, rule in RULES.items()}
# These only move or choose numbers, or change signs. So their results need no rounding.
_MOVES = set(shapes.RULES) - {"reduce_sum", "reduce_prod", "cumsum", "cumprod", "iota"}
_MOVES |= {"select_n", "neg", "abs", "max", "min", "copy", "clamp"}


def convert(
    function: Callable, inputs: Mapping[str, Any], outputs: Sequence[str]
) -> onnx.ModelProto:
    """The ONNX model of a function.

    Args:
        function: takes arrays and returns a pytree of arrays.
        inputs: a `jax.ShapeDtypeStruct` for each name. Sizes may be symbolic.
        outputs: names of the leaves of the result.

    Raises:
        ValueError: for a primitive without an ONNX form (`Unsupported`), or if there
            are not as many names as leaves.
    """
    closed = jax.make_jaxpr(lambda *args: jax.tree.leaves(function(*args)))(
        *map(traced, inputs.values())
    )
    graph = Graph()
    for name, spec in inputs.items():
        for axis, dim in enumerate(spec.shape):
            if str(dim).isidentifier() and str(dim) not in graph.sizes:
                graph.sizes[str(dim)] = graph.op(
                    "Shape", name, start=axis, end=axis + 1
                )
    arguments = []
    for (name, spec), var in zip(inputs.items(), closed.jaxpr.invars, strict=True):
        # Without its x64 mode, JAX takes the int64 ids of a tokenizer as int32.
        same = spec.dtype == var.aval.dtype
        taken = name if same else graph.cast(name, var.aval.dtype)
        # An input of a half type comes as float32, with numbers that need rounding.
        arguments.append(graph.rounded(taken, var.aval.dtype))
    results = run(graph, *compat.opened(closed), arguments)
    if len(results) != len(outputs):
        raise ValueError(
            f"to_onnx: the function returns {len(results)} arrays, and outputs has "
            f"{len(outputs)} names: {list(outputs)}; give one for each"
        )
    for name, result in zip(outputs, results, strict=True):
        graph.nodes.append(helper.make_node("Identity", [result], [name]))
    proto = graph.proto(
        "scanrnn",
        [info(name, spec) for name, spec in inputs.items()],
        [
            info(n, var.aval)
            for n, var in zip(outputs, closed.jaxpr.outvars, strict=True)
        ],
    )
    model = helper.make_model(
        proto,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="scanrnn",
    )
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Unsupported(
            f"to_onnx: an operator of ONNX does not take what it is given: {error}"
            f"{ELSEWHERE}"
        ) from error
    return model


def run(
    graph: Graph, jaxpr: Any, consts: Sequence, arguments: Sequence, wanted: Any = None
) -> list:
    """Add the equations of a jaxpr that its results need.

    Args:
        graph: the graph that gets the nodes.
        jaxpr: the jaxpr with the equations.
        consts: arrays, or names of values of the graph.
        arguments: names of values; None for an argument that is not needed.
        wanted: for each result, whether it is needed; None if all are.

    Returns:
        The names of the results; None for a result that is not needed.
    """
    wanted = [True] * len(jaxpr.outvars) if wanted is None else wanted
    live, eqns = _live(jaxpr, wanted)
    names: dict[Any, Any] = {}
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        if var in live:
            names[var] = const if isinstance(const, str) else graph.constant(const)
    names.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom):
        if isinstance(atom, core.Literal):
            aval: Any = atom.aval
            return graph.constant(np.asarray(atom.val, aval.dtype))
        return names[atom] if atom in live else None

    for eqn in eqns:
        outs = [var in live for var in eqn.outvars]
        results = _equation(graph, eqn, [read(atom) for atom in eqn.invars], outs)
        names.update(zip(eqn.outvars, results, strict=True))
    return [
        read(atom) if want else None
        for atom, want in zip(jaxpr.outvars, wanted, strict=True)
    ]


def _live(jaxpr, wanted):
    """The variables that the wanted results need, and the equations that make them."""
    outs = zip(jaxpr.outvars, wanted, strict=True)
    live = {var for var, want in outs if want and not isinstance(var, core.Literal)}
    eqns = []
    for eqn in reversed(jaxpr.eqns):
        outs = [var in live for var in eqn.outvars]
        if not any(outs):
            continue
        eqns.append(eqn)
        inputs = eqn.invars
        # An argument that the call does not use is not needed, such as a key for a
        # carry of zeros.
        if _is_call(eqn):
            body = _called(eqn)
            inside = _live(body, outs)[0]
            pairs = zip(inputs, body.invars, strict=True)
            inputs = [var for var, own in pairs if own in inside]
        live |= {var for var in inputs if not isinstance(var, core.Literal)}
    return live, eqns[::-1]


def _is_call(eqn):
    """Whether an equation only runs a program, as `jit` and the planner's loops do."""
    return compat.is_any_call(eqn) or eqn.primitive.name == ops.RULED


def _called(eqn):
    """The jaxpr that an equation calls."""
    return compat.opened(compat.program(eqn))[0]


def _equation(graph, eqn, arguments, wanted):
    """The names of the results of an equation."""
    name = eqn.primitive.name
    if name == "scan":
        if is_empty(eqn.params["length"]):
            return _no_steps(graph, eqn, arguments)
        return native.find(graph, eqn, arguments) or _scan(graph, eqn, arguments)
    if name in _CONTROL:
        return _CONTROL[name](graph, eqn, arguments)
    if _is_call(eqn):
        return _call(graph, eqn, arguments, wanted)
    if name not in RULES:
        raise Unsupported(
            f"to_onnx: ONNX has no operator for {name!r}, which this program uses: "
            f"{eqn}; compute it outside of what is exported, or export that with "
            "to_stablehlo"
        )
    results = RULES[name](graph, eqn, *arguments)
    results = [results] if isinstance(results, str) else results
    if name in _MOVES:
        return results
    outs = zip(results, eqn.outvars, strict=True)
    return [graph.rounded(result, var.aval.dtype) for result, var in outs]


def _call(graph, eqn, arguments, wanted):
    return run(graph, *compat.opened(compat.program(eqn)), arguments, wanted)


def _body(parent, closed, captured, arguments, unread=()):
    """A jaxpr as the body of a node. It reads captured values from the outer graph.

    The node gives it more inputs than the jaxpr has, of the types in `unread`.
    """
    graph = Graph(parent)
    inputs = [graph.name("in") for _ in arguments]
    jaxpr, consts = compat.opened(closed)
    results = run(graph, jaxpr, consts, [*captured, *inputs])
    arguments = [*arguments, *unread]
    inputs += [graph.name("in") for _ in unread]
    names = [graph.op("Identity", result) for result in results]
    return graph.proto(
        graph.name("body"),
        [info(n, aval) for n, aval in zip(inputs, arguments, strict=True)],
        [info(n, v.aval) for n, v in zip(names, jaxpr.outvars, strict=True)],
    )


def _scan(graph, eqn, arguments):
    """A loop as `Scan`, whose body is the step."""
    consts, carries = compat.scan_arity(eqn)
    captured, rest = arguments[:consts], arguments[consts:]
    count, unread = len(rest) - carries, []
    if not count:
        # The operator takes the number of steps from an input.
        rest = [*rest, _numbers(graph, eqn.params["length"])]
        count, unread = 1, [jax.ShapeDtypeStruct((), np.int64)]
    body = eqn.params["jaxpr"]
    avals = [var.aval for var in compat.opened(body)[0].invars[consts:]]
    ys, reverse = len(eqn.outvars) - carries, int(eqn.params["reverse"])
    # ONNX has no empty attributes.
    directions = {"scan_output_directions": [reverse] * ys} if ys else {}
    return graph.ops(
        "Scan",
        len(eqn.outvars),
        *rest,
        body=_body(graph, body, captured, avals, unread),
        num_scan_inputs=count,
        scan_input_directions=[reverse] * count,
        **directions,
    )


def _no_steps(graph, eqn, arguments):
    """A loop of no steps: the first carry, and outputs without elements."""
    consts, carries = compat.scan_arity(eqn)
    outs = []
    for var in eqn.outvars[carries:]:
        zero = graph.constant(np.zeros((), var.aval.dtype))
        outs.append(graph.op("Expand", zero, graph.shape(var.aval.shape)))
    return [*arguments[consts : consts + carries], *outs]


def _numbers(graph, length):
    """The numbers of the steps of a loop."""
    first, step = (graph.constant(k, np.int64) for k in (0, 1))
    return graph.op("Range", first, graph.op("Squeeze", graph.size(length)), step)


def _cond(graph, eqn, arguments):
    """A choice between two branches, as `If`."""
    branches = eqn.params["branches"]
    if len(branches) != 2:
        raise Unsupported(
            f"to_onnx: a switch of {len(branches)} branches, want two; nest lax.cond"
        )
    no, yes = (_body(graph, branch, arguments[1:], []) for branch in branches)
    which = graph.cast(arguments[0], np.bool_)
    outs = len(eqn.outvars)
    return graph.ops("If", outs, which, then_branch=yes, else_branch=no)


def _while(graph, eqn, arguments):
    """A loop that runs as long as a condition holds, as `Loop`."""
    first = eqn.params["cond_nconsts"]
    last = first + eqn.params["body_nconsts"]
    reads, captured, state = (
        arguments[:first],
        arguments[first:last],
        arguments[last:],
    )
    goes = compat.opened(eqn.params["cond_jaxpr"])
    step = compat.opened(eqn.params["body_jaxpr"])
    # The operator gives its body the number of the step and the last condition.
    types = [jax.ShapeDtypeStruct((), dtype) for dtype in (np.int64, np.bool_)]
    types += [var.aval for var in eqn.outvars]
    body = Graph(graph)
    inputs = [body.name("in") for _ in types]
    new = run(body, *step, [*captured, *inputs[2:]])
    names = [body.op("Identity", n) for n in run(body, *goes, [*reads, *new]) + new]
    proto = body.proto(
        body.name("body"),
        list(map(info, inputs, types)),
        list(map(info, names, types[1:])),
    )
    (start,) = run(graph, *goes, [*reads, *state])
    return graph.ops("Loop", len(state), "", start, *state, body=proto)


_CONTROL = {"cond": _cond, "while": _while}
