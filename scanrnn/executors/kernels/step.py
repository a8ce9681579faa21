"""Evaluate one step inside a kernel, in a form that Mosaic accepts."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from scanrnn.executors.kernels.forms import COLUMNS, Matrix
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Graph, Values, eval_eqn, needed
from scanrnn.planner.passes.wide_sums import rounded, wide, widens

# Primitives of which a small error of an operand can change the result as a whole.
_OF_ROUNDED = frozenset("ceil eq floor ge gt is_finite le lt ne rem round sign".split())
# Primitives that a kernel computes in float32 if the plan has half precision.
_IN_FLOAT32 = ops.ELEMENTWISE - _OF_ROUNDED
_IN_FLOAT32 -= {"convert_element_type", "reduce_precision"}
_IN_FLOAT32 |= {"broadcast_in_dim", "concatenate", "reshape", "slice", "split"}
_IN_FLOAT32 |= {"squeeze", "transpose"}


def step(graph: Graph, values: Values) -> list:
    """The next carry and the ys of one step without calls, given its inputs.

    Half precision is computed in float32, as the units of a TPU v5e do. A value is
    rounded where it is stored, multiplied by a matrix, compared or cast, and not
    between two elementwise equations. XLA does the same inside a fusion, unless its
    flag `xla_allow_excess_precision` is off.
    """
    eqns, env = needed(graph.eqns, graph.outs), Env((), values)
    made: dict[Any, JaxprEqn] = {v: eqn for eqn in eqns for v in eqn.outvars}
    for eqn in eqns:
        ins = list(map(env.read, eqn.invars))
        if eqn.primitive.name in ops.PRODUCTS:
            outs = [_product(eqn, ins[0], ins[1], made.get(eqn.invars[0]))]
        else:
            outs = _others(eqn, ins)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [_rounded(env.read(v), v) for v in graph.outs]


def _others(eqn: JaxprEqn, ins: list) -> list:
    """The results of an equation that is not a product."""
    name = eqn.primitive.name
    if name == "div" and _is_column(eqn.invars[1]):
        return [_quotient(*ins)]
    if name in _IN_FLOAT32 or widens(eqn):
        return eval_eqn(eqn, list(map(_widened, ins)))
    return eval_eqn(eqn, list(map(_rounded, ins, eqn.invars)))


def _is_column(atom) -> bool:
    """Whether a value has one number for each row."""
    aval = ops.aval(atom)
    return aval.ndim > 1 and aval.shape[-1] == 1 and ops.is_inexact(atom)


def _widened(value):
    """A value, in float32 if it has half precision."""
    value = jnp.asarray(value)
    return value.astype(wide(value.dtype))


def _rounded(value, atom):
    """A value in the dtype that the plan says."""
    return rounded(jnp.asarray(value), ops.aval(atom))


def _quotient(a, b):
    """Divide rows by one number each: by its inverse, computed once for a row."""
    return _widened(a) * (1 / _widened(b))


def _product(eqn: JaxprEqn, a, b, maker: JaxprEqn | None):
    """A product of rounded operands, accumulated in float32 or wider."""
    numbers, precision = (eqn.params[p] for p in ("dimension_numbers", "precision"))
    left, right = eqn.invars
    kind, a = wide(ops.aval(eqn.outvars[0]).dtype), _rounded(a, left)
    if not isinstance(b, Matrix):
        return _contracted(a, _rounded(b, right), numbers, precision, kind)
    made = (
        _contracted(
            a[:, start : start + size], b.rows(start, size), numbers, precision, kind
        )
        for start, size in _blocks(a.shape[1], maker)
    )
    return functools.reduce(jnp.add, made)


def _contracted(a, b, numbers, precision, dtype):
    """A product of arrays, contracted over one axis at a time, as Mosaic requires."""
    (ours, theirs), batch = numbers
    if len(ours) <= 1:
        return lax.dot_general(a, b, numbers, precision, preferred_element_type=dtype)
    i = min(range(len(ours)), key=lambda i: a.shape[ours[i]])
    rest = tuple(
        tuple(
            tuple(d - (d > axes[i]) for d in group if d != axes[i])
            for group in (axes, more)
        )
        for axes, more in zip((ours, theirs), batch, strict=True)
    )
    rest = tuple(zip(*rest, strict=True))
    parts = (
        (
            lax.index_in_dim(a, j, ours[i], False),
            lax.index_in_dim(b, j, theirs[i], False),
        )
        for j in range(a.shape[ours[i]])
    )
    made = (_contracted(x, y, rest, precision, dtype) for x, y in parts)
    return functools.reduce(jnp.add, made)


def _blocks(depth: int, maker: JaxprEqn | None) -> list[tuple[int, int]]:
    """Parts of the depth of a product, each as deep as a matrix unit.

    If the left operand is a concatenation, the parts of its members alternate. An
    elementwise step makes the same features of all members at the same time. So these
    can be multiplied while it makes the next features.
    """
    parts = [depth]
    if maker is not None and maker.primitive.name == "concatenate":
        if maker.params["dimension"] == 1:
            parts = [ops.aval(v).shape[1] for v in maker.invars]
    if any(size % COLUMNS for size in parts):
        return [(0, depth)]
    starts = [sum(parts[:i]) for i in range(len(parts))]
    found = [
        (at - start, i, at)
        for i, (start, size) in enumerate(zip(starts, parts, strict=True))
        for at in range(start, start + size, COLUMNS)
    ]
    return [(at, COLUMNS) for *_, at in sorted(found)]
