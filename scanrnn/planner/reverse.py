"""The reverse step as data: the transpose of the loop's step, a graph like any other.

Its carry is the cotangents of the carry, and sums of those of weights whose tangents
flow in the loop; its time inputs are rows that the forward loop kept, and cotangents of
what it stacked; its outputs are cotangents of what entered from outside at each step.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, Var

from scanrnn.planner import ops
from scanrnn.planner.gradient import Derivative
from scanrnn.planner.graph import Graph, renamed, struct
from scanrnn.planner.halves import in_wide_sums, rounded, wide


class Moving(NamedTuple):
    """Names of what has a tangent in a loop.

    Attributes:
      carry: carries at the start.
      weights: weights whose tangents flow inside.
      cuts: where contributions enter.
      xs: time inputs whose tangents flow inside.
      ys: what is stacked.
    """

    carry: tuple[Var, ...]
    weights: tuple[Var, ...]
    cuts: tuple[Var, ...]
    xs: tuple[Var, ...]
    ys: tuple[Var, ...]

    @property
    def ins(self) -> tuple[tuple[Var, ...], ...]:
        """The groups of what comes in."""
        return self[:4]


class Reverse(NamedTuple):
    """A reverse step, and where what it reads comes from.

    Attributes:
      graph: the step. Constants and rows have the names they have in the loop.
      turned: the names of transposed matrices, by matrix.
      cts: the names of cotangents of what was stacked, by what was.
      consts: values of further weights, by name.
    """

    graph: Graph
    turned: Mapping[Var, Var]
    cts: Mapping[Var, Var]
    consts: Mapping[Var, Any]


def push_step(rules: Derivative, moving: Moving, primals, turned, *tangents) -> list:
    """Tangents of the next carry and the ys, given those of `moving.ins`, flat."""
    d_carry, d_weights, entering, d_xs = (
        dict(zip(names, values, strict=True))
        for names, values in zip(moving.ins, tangents, strict=True)
    )
    primals = zeros_of(rules, primals) | primals
    found = rules.inside(primals, d_carry | d_weights | d_xs, entering, turned)
    after = dict(zip(rules.loop.carry, rules.loop.carry_out, strict=True))
    d_next = [_or_zeros(found, after[v], t) for v, t in d_carry.items()]
    return [*d_next, *(found[v] for v in moving.ys)]


def zeros_of(rules: Derivative, known: Mapping[Var, Any]) -> dict[Var, Any]:
    """Zeros for what is not known, as no tangent depends on it.

    The rules may evaluate it all the same, as `jax.jvp` does.
    """
    asked = (*rules.loop.carry, *rules.loop.xs, *rules.saved)
    return {v: ops.zeros(ops.aval(v)) for v in asked if v not in known}


def _or_zeros(found, atom, like):
    t = None if isinstance(atom, Literal) else found.get(atom)
    return jnp.zeros_like(like) if t is None else t


def reverse_step(rules: Derivative, moving: Moving) -> Reverse:
    """The transpose of one step of a loop; `moving.ys` are those with a cotangent."""
    cached = rules.reverses
    if moving not in cached:
        cached[moving] = _reverse_step(rules, moving)
    return cached[moving]


def _reverse_step(rules, moving) -> Reverse:
    loop = rules.loop
    rows = rules.rows(rules.read_inside)
    matrices = rules.matrices
    groups = loop.weights, matrices, moving.carry, moving.weights, rows, moving.ys
    structs = [list(map(struct, group)) for group in groups]
    structs[1] = [s.update(shape=s.shape[::-1]) for s in structs[1]]
    structs[3] = list(map(_summed, structs[3]))

    def pull(constants, turned, ct_carry, sums, rows_t, ct_ys):
        primals = dict(zip((*loop.weights, *rows), (*constants, *rows_t), strict=True))
        turned = dict(zip(matrices, turned, strict=True))
        step = functools.partial(push_step, rules, moving, primals, turned)
        ins = [list(map(struct, group)) for group in moving.ins]
        found = jax.linear_transpose(step, *ins)([*ct_carry, *ct_ys])
        ct_carry, more, *made = found
        more = list(map(rounded, more, sums))
        sums = list(map(jnp.add, sums, more))
        return [*ct_carry, *sums], [ct for group in made for ct in group]

    closed = jax.make_jaxpr(in_wide_sums(pull))(*structs)
    ins = iter(closed.jaxpr.invars)
    weights, turned, cts, sums, rows_t, ct_ys = ([next(ins) for _ in g] for g in groups)
    carry = (*cts, *sums)
    graph = Graph(
        weights=(*weights, *turned, *closed.jaxpr.constvars),
        carry=carry,
        xs=(*rows_t, *ct_ys),
        eqns=tuple(closed.jaxpr.eqns),
        carry_out=tuple(closed.jaxpr.outvars[: len(carry)]),
        ys=tuple(closed.jaxpr.outvars[len(carry) :]),
    ).pruned()
    names = dict(zip((*weights, *rows_t), (*loop.weights, *rows), strict=True))
    return Reverse(
        renamed(graph, names),
        dict(zip(matrices, turned, strict=True)),
        dict(zip(moving.ys, ct_ys, strict=True)),
        dict(zip(closed.jaxpr.constvars, closed.consts, strict=True)),
    )


def _summed(s: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The type in which values of a type are summed over time."""
    same = wide(s.dtype) == s.dtype
    return s if same else s.update(dtype=wide(s.dtype), weak_type=False)
