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
from scanrnn.planner.passes.wide_sums import wide


def step(graph: Graph, values: Values) -> list:
    """The next carry and the ys of one step without calls, given its inputs."""
    eqns, env = needed(graph.eqns, graph.outs), Env((), values)
    made: dict[Any, JaxprEqn] = {v: eqn for eqn in eqns for v in eqn.outvars}
    for eqn in eqns:
        ins = list(map(env.read, eqn.invars))
        if eqn.primitive.name in ops.PRODUCTS:
            outs = [_product(eqn, ins[0], ins[1], made.get(eqn.invars[0]))]
        elif eqn.primitive.name == "div" and _is_column(eqn.invars[1]):
            outs = [_quotient(ins[0], ins[1])]
        elif any(map(_is_wide, ins, eqn.invars)):
            outs = [_in_float32(eqn, ins)]
        else:
            outs = eval_eqn(eqn, ins)
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(env.read, graph.outs))


def _is_column(atom) -> bool:
    """Whether a value has one number for each row."""
    aval = ops.aval(atom)
    return aval.ndim > 1 and aval.shape[-1] == 1 and ops.is_inexact(atom)


def _is_wide(value, atom) -> bool:
    """Whether a value is held in more bits than the plan says."""
    return not ops.is_literal(atom) and value.dtype != ops.aval(atom).dtype


def _in_float32(eqn: JaxprEqn, ins: list):
    """A sum or a product of operands of which some are held in float32."""
    (made,) = eval_eqn(eqn, [jnp.asarray(x, jnp.float32) for x in ins])
    return made.astype(ops.aval(eqn.outvars[0]).dtype)


def _quotient(a, b):
    """Divide rows by one number each: by its inverse, computed once for a row."""
    kind = wide(b.dtype)
    return (a.astype(kind) * (1 / b.astype(kind))).astype(b.dtype)


def _product(eqn: JaxprEqn, a, b, maker: JaxprEqn | None):
    """A product, accumulated in float32 or wider, and rounded to the plan's dtype."""
    dtype = ops.aval(eqn.outvars[0]).dtype
    numbers, precision = (eqn.params[p] for p in ("dimension_numbers", "precision"))

    def part(a, b):
        return _contracted(a, b, numbers, precision, wide(dtype))

    if not isinstance(b, Matrix):
        return part(a, b).astype(dtype)
    made = (
        part(a[:, start : start + size], b.rows(start, size))
        for start, size in _blocks(a.shape[1], maker)
    )
    return functools.reduce(jnp.add, made).astype(dtype)


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
