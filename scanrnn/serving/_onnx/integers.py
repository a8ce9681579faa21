"""Primitives that onnxruntime has for some integers only. Others become int64."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import numpy as np

from scanrnn.planner.ir import ops
from scanrnn.serving._onnx.graph import Unsupported

_SUMS = ("cumsum", "cumprod", "integer_pow", "dot_general", ops.PRODUCT)
_LARGEST = ("reduce_max", "reduce_min", "argmax", "argmin", "top_k")
_OTHERS = ("max", "min", "clamp", "cummax", "cummin", "ge", "gt", "le", "lt", "pad")
_TAKEN = {
    # onnxruntime does not let these wrap around, so int32 becomes int64 too.
    **dict.fromkeys(("reduce_sum", "reduce_prod"), ("int64",)),
    **dict.fromkeys(_SUMS + _LARGEST, ("int32", "int64")),
    **dict.fromkeys(_OTHERS, ("int32", "int64", "uint64")),
}


def widened(name: str, rule: Callable) -> Callable:
    """The rule of a primitive, with integers that onnxruntime lacks as int64.

    Sums and products that are too large wrap around in the cast back, as in JAX.

    Args:
        name: the name of the primitive.
        rule: its rule. It reads types, parameters and the name from the equation.
    """
    if name not in _TAKEN:
        return rule

    def wide(graph, eqn, *xs):
        old = [var.aval.dtype for var in eqn.invars]
        if not any(_is_lacking(name, dtype) for dtype in old):
            return rule(graph, eqn, *xs)
        if name in _LARGEST and np.dtype(np.uint64) in old:
            raise Unsupported(
                f"to_onnx: onnxruntime has no {name} of uint64; cast it to int64"
            )
        xs = [
            graph.cast(x, np.int64) if _is_lacking(name, dtype) else x
            for x, dtype in zip(xs, old, strict=True)
        ]
        results = rule(graph, _in_int64(name, eqn), *xs)
        results = [results] if isinstance(results, str) else results
        return [
            graph.cast(result, var.aval.dtype)
            if _is_lacking(name, var.aval.dtype)
            else result
            for result, var in zip(results, eqn.outvars, strict=True)
        ]

    return wide


def _is_lacking(name, dtype):
    """Whether a dtype is one of integers or booleans that onnxruntime lacks here."""
    return dtype.kind in "biu" and str(dtype) not in _TAKEN[name]


def _in_int64(name, eqn):
    """What a rule reads of an equation, with the types after the casts."""

    def cast(var):
        dtype = np.int64 if _is_lacking(name, var.aval.dtype) else var.aval.dtype
        return SimpleNamespace(aval=jax.ShapeDtypeStruct(var.aval.shape, dtype))

    sides = {k: list(map(cast, getattr(eqn, k))) for k in ("invars", "outvars")}
    return SimpleNamespace(primitive=eqn.primitive, params=eqn.params, **sides)
