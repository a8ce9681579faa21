"""Primitives that treat every number for itself."""

from typing import Any

import numpy as np

from scanrnn.serving._onnx.graph import HALF, Graph, Unsupported, is_floating

_SAME = {
    **{"abs": "Abs", "add": "Add", "add_any": "Add", "ceil": "Ceil", "cos": "Cos"},
    **{"cosh": "Cosh", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp"},
    **{"floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "max": "Max"},
    **{"le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less"},
    **{"min": "Min", "mul": "Mul", "neg": "Neg", "pow": "Pow", "sign": "Sign"},
    **{"sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan"},
    **{"tanh": "Tanh", "asin": "Asin", "acos": "Acos", "atan": "Atan"},
    **{"asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh"},
}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_MOVED = ("copy", "copy_p", "stop_gradient", "optimization_barrier", "sharding_cast")


def _same(kind):
    return lambda graph, eqn, *xs: graph.op(kind, *xs)


def _logical(kind):
    def rule(graph, eqn, *xs):
        bits = eqn.invars[0].aval.dtype != np.bool_
        return graph.op(f"Bitwise{kind}" if bits else kind, *xs)

    return rule


def _one(graph: Graph, eqn: Any) -> str:
    """The number one in the dtype of the equation."""
    return _number(graph, eqn, 1.0)


def _number(graph, eqn, value):
    dtype = eqn.outvars[0].aval.dtype
    return graph.constant(value, np.float32 if str(dtype) in HALF else dtype)


def _round(graph, eqn, x):
    if int(eqn.params["rounding_method"]) != 1:
        raise Unsupported("to_onnx: round away from zero, want to even: jnp.round")
    return graph.op("Round", x)


def _integer_pow(graph, eqn, x):
    exponent = eqn.params["y"]
    if exponent == 2:
        return graph.op("Mul", x, x)
    return graph.op("Pow", x, _number(graph, eqn, exponent))


def _exp2(graph, eqn, x):
    return graph.op("Pow", _number(graph, eqn, 2.0), x)


def _rsqrt(graph, eqn, x):
    return graph.op("Reciprocal", graph.op("Sqrt", x))


def _log1p(graph, eqn, x):
    """Kahan's log(u) x / (u - 1) of u = 1 + x: exact where x is small."""
    one = _one(graph, eqn)
    u = graph.op("Add", x, one)
    rest = graph.op("Sub", u, one)
    log = graph.op("Log", u)
    small = graph.op("Equal", rest, _number(graph, eqn, 0.0))
    exact = graph.op("Div", graph.op("Mul", log, x), rest)
    exact = graph.op("Where", graph.op("IsInf", u), log, exact)
    return graph.op("Where", small, x, exact)


def _expm1(graph, eqn, x):
    """Kahan's (u - 1) x / log(u) of u = exp(x)."""
    one = _one(graph, eqn)
    u = graph.op("Exp", x)
    rest, log = graph.op("Sub", u, one), graph.op("Log", u)
    exact = graph.op("Div", graph.op("Mul", rest, x), log)
    exact = graph.op("Where", graph.op("IsInf", log), rest, exact)
    small = graph.op("Equal", rest, _number(graph, eqn, 0.0))
    return graph.op("Where", small, x, exact)


def _is_finite(graph, eqn, x):
    bad = graph.op("Or", graph.op("IsInf", x), graph.op("IsNaN", x))
    return graph.op("Not", bad)


def _rem(graph, eqn, x, y):
    return graph.op("Mod", x, y, fmod=1)


def _convert(graph, eqn, x):
    new, old = eqn.params["new_dtype"], eqn.invars[0].aval.dtype
    if str(new) in HALF and is_floating(eqn.invars[0].aval):
        return x if old != np.float64 else graph.cast(x, np.float32)
    return graph.cast(x, new)


def _reduce_precision(graph, eqn, x):
    sizes = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    half = {(8, 7): "bfloat16", (5, 10): "float16"}.get(sizes)
    if half is None:
        raise Unsupported(f"to_onnx: reduce_precision to {sizes} bits")
    return graph.rounded(x, half)


def _select(graph, eqn, which, *cases):
    if len(cases) != 2 or eqn.invars[0].aval.dtype != np.bool_:
        raise Unsupported("to_onnx: select_n of more than two cases")
    return graph.op("Where", which, cases[1], cases[0])


def _clamp(graph, eqn, low, x, high):
    return graph.op("Min", graph.op("Max", x, low), high)


def _moved(graph, eqn, *xs):
    return list(xs)


RULES = {name: _same(kind) for name, kind in _SAME.items()}
RULES |= {name: _logical(kind) for name, kind in _LOGICAL.items()}
RULES |= {name: _moved for name in _MOVED}
RULES |= {
    "ne": lambda graph, eqn, x, y: graph.op("Not", graph.op("Equal", x, y)),
    "square": lambda graph, eqn, x: graph.op("Mul", x, x),
    "round": _round,
    "integer_pow": _integer_pow,
    "exp2": _exp2,
    "rsqrt": _rsqrt,
    "log1p": _log1p,
    "expm1": _expm1,
    "is_finite": _is_finite,
    "rem": _rem,
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "select_n": _select,
    "clamp": _clamp,
}
