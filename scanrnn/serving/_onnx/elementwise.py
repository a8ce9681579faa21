"""Primitives that compute each element by itself."""

from typing import Any

import numpy as np

from scanrnn.serving._onnx.graph import ELSEWHERE, HALF, Graph, Unsupported, is_floating

_SAME = {
    **{"abs": "Abs", "add": "Add", "add_any": "Add", "ceil": "Ceil", "cos": "Cos"},
    **{"cosh": "Cosh", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp"},
    **{"floor": "Floor", "log": "Log", "logistic": "Sigmoid", "max": "Max"},
    **{"min": "Min", "mul": "Mul", "pow": "Pow", "sign": "Sign"},
    **{"sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan"},
    **{"ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"},
    **{"tanh": "Tanh", "asin": "Asin", "acos": "Acos", "atan": "Atan"},
    **{"asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh"},
}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_MOVED = (
    *("copy", "stop_gradient", "optimization_barrier"),
    *("sharding_cast", "sharding_constraint", "device_put", "scanrnn_pin"),
)


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


def _neg(graph, eqn, x):
    dtype = eqn.outvars[0].aval.dtype
    if np.issubdtype(dtype, np.unsignedinteger):
        return graph.op("Sub", graph.constant(0, dtype), x)
    return graph.op("Neg", x)


def _round(graph, eqn, x):
    if int(eqn.params["rounding_method"]) == 1:
        return graph.op("Round", x)
    # Halves away from zero. The difference of two such numbers is exact.
    size = graph.op("Abs", x)
    least = graph.op("Floor", size)
    high = graph.op(
        "GreaterOrEqual", graph.op("Sub", size, least), _number(graph, eqn, 0.5)
    )
    whole = graph.op("Add", least, _one(graph, eqn))
    return graph.op("Mul", graph.op("Sign", x), graph.op("Where", high, whole, least))


def _integer_pow(graph, eqn, x):
    exponent = eqn.params["y"]
    if exponent == 2:
        return graph.op("Mul", x, x)
    return graph.op("Pow", x, _number(graph, eqn, exponent))


def _exp2(graph, eqn, x):
    return graph.op("Pow", _number(graph, eqn, 2.0), x)


def _log2(graph, eqn, x):
    return graph.op("Div", graph.op("Log", x), _number(graph, eqn, np.log(2)))


def _cbrt(graph, eqn, x):
    third = graph.op("Pow", graph.op("Abs", x), _number(graph, eqn, 1 / 3))
    return graph.op("Mul", graph.op("Sign", x), third)


def _erfc(graph, eqn, x):
    """1 - erf(x). The absolute error is the rounding of one, also of a tiny result."""
    return graph.op("Sub", _one(graph, eqn), graph.op("Erf", x))


def _rsqrt(graph, eqn, x):
    return graph.op("Reciprocal", graph.op("Sqrt", x))


def _log1p(graph, eqn, x):
    """Kahan's log(u) x / (u - 1) with u = 1 + x, which is exact for small x."""
    one = _one(graph, eqn)
    u = graph.op("Add", x, one)
    rest = graph.op("Sub", u, one)
    log = graph.op("Log", u)
    small = graph.op("Equal", rest, _number(graph, eqn, 0.0))
    # The quotient comes first, because the product with x could overflow.
    exact = graph.op("Mul", log, graph.op("Div", x, rest))
    exact = graph.op("Where", graph.op("IsInf", u), log, exact)
    return graph.op("Where", small, x, exact)


def _expm1(graph, eqn, x):
    """Kahan's (u - 1) x / log(u) with u = exp(x), which is exact for small x."""
    one = _one(graph, eqn)
    u = graph.op("Exp", x)
    rest, log = graph.op("Sub", u, one), graph.op("Log", u)
    # The quotient comes first, because the product with x could overflow.
    exact = graph.op("Mul", rest, graph.op("Div", x, log))
    # The logarithm of a tiny u is not x, because u has few digits or none.
    far = graph.op("Equal", rest, _number(graph, eqn, -1.0))
    far = graph.op("Or", far, graph.op("IsInf", log))
    exact = graph.op("Where", far, rest, exact)
    small = graph.op("Equal", rest, _number(graph, eqn, 0.0))
    return graph.op("Where", small, x, exact)


def _atan2(graph, eqn, y, x):
    """The angle in the first octant, then moved by the signs (also those of zeros)."""
    zero = _number(graph, eqn, 0.0)
    half, full = (_number(graph, eqn, angle) for angle in (np.pi / 2, np.pi))
    up, right = graph.op("Abs", y), graph.op("Abs", x)
    least, most = graph.op("Min", up, right), graph.op("Max", up, right)
    ratio = graph.op("Div", least, most)
    alike = graph.op("Equal", least, most)  # also for two zeros or two infinities
    ratio = graph.op("Where", alike, graph.op("Sign", most), ratio)
    angle = graph.op("Atan", ratio)
    steep = graph.op("Greater", up, right)
    angle = graph.op("Where", steep, graph.op("Sub", half, angle), angle)

    def negative(name):
        sign = graph.op("Less", graph.op("Reciprocal", name), zero)
        return graph.op("Or", graph.op("Less", name, zero), sign)

    angle = graph.op("Where", negative(x), graph.op("Sub", full, angle), angle)
    # Multiply, because onnxruntime's `Where` loses the sign of a zero.
    signs = [_number(graph, eqn, sign) for sign in (-1.0, 1.0)]
    return graph.op("Mul", angle, graph.op("Where", negative(y), *signs))


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
        raise Unsupported(f"to_onnx: reduce_precision to {sizes} bits{ELSEWHERE}")
    return graph.rounded(x, half)


def _select(graph, eqn, which, *cases):
    if len(cases) != 2:
        raise Unsupported(f"to_onnx: select_n of {len(cases)} cases{ELSEWHERE}")
    if eqn.invars[0].aval.dtype != np.bool_:  # 0 or 1, which a mapped lax.cond has
        which = graph.cast(which, np.bool_)
    return graph.where(which, cases[1], cases[0], eqn.outvars[0].aval.dtype)


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
    "neg": _neg,
    "round": _round,
    "integer_pow": _integer_pow,
    "exp2": _exp2,
    "log2": _log2,
    "cbrt": _cbrt,
    "erfc": _erfc,
    "rsqrt": _rsqrt,
    "log1p": _log1p,
    "expm1": _expm1,
    "atan2": _atan2,
    "is_finite": _is_finite,
    "rem": _rem,
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "select_n": _select,
    "clamp": _clamp,
}
