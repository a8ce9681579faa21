"""What two steps must have in common to share one plan.

A network traces the same step once for each of its layers: every call of a layer makes
a new function, so JAX gives a new jaxpr. Their plans would be alike, and so would all
that JAX traces for them. Steps of equal structure share one plan instead.

Two steps have the same structure if they have the same equations, in the same order, on
values of the same types. Which arrays they close over does not matter: a plan takes
them by position. Where in the user's code they were written does not matter either.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from scanrnn.planner.derivative.tangent import derivative_of
from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.keys import UnknownError, key_of

# A rule mostly calls its own function, which has the rule, and so on without end. Rules
# are compared as far as second derivatives show them; from there on, functions alone.
_MOST_RULES = 2


def structure(graph: Graph) -> Hashable | None:
    """A key that is equal for graphs that compute the same in the same way.

    None for a graph with something that cannot be compared: an array inside a nested
    program, a function that was made while the step was traced (the rule of a
    `jax.custom_vjp`, say), or an effect.
    """
    groups = graph.weights, graph.carry, graph.xs
    try:
        program = _program(graph.inputs, graph.eqns, graph.outs, 0)
    except UnknownError:
        return None
    return (*map(len, groups), program)


def _program(
    ins: Iterable[Var], eqns: Sequence[JaxprEqn], outs: Iterable, rules: int
) -> tuple:
    """The key of a program, which lies inside so many derivative rules.

    A variable is known by when it is defined.
    """
    numbers: dict[Var, int] = {}

    def define(v):
        numbers[v] = len(numbers)
        return ops.aval(v)

    def read(atom):
        return _literal(atom) if isinstance(atom, Literal) else numbers[atom]

    def equation(eqn):
        if eqn.effects:
            raise UnknownError
        read_from = tuple(map(read, eqn.invars))
        made = tuple(map(define, eqn.outvars))
        around = compat.context(eqn), compat.scope(eqn)
        has_rule = compat.has_rule(eqn)
        what = _ruled(eqn, rules) if has_rule else _key(eqn.params, rules)
        return eqn.primitive, around, read_from, made, what

    types = tuple(map(define, ins))
    return types, tuple(map(equation, eqns)), tuple(map(read, outs))


def _ruled(eqn: JaxprEqn, rules: int) -> tuple:
    """The key of a `jax.custom_jvp`: its program, and that of its derivative."""
    if not compat.has_simple_jvp(eqn):
        raise UnknownError
    program = _key(compat.program(eqn), rules)
    if rules == _MOST_RULES:
        return program, None
    rule = derivative_of(eqn)
    if rule is None:
        raise UnknownError
    return program, _key(rule, rules + 1)


def _literal(atom: Literal) -> tuple:
    """The key of a literal: its bits, as 0.0 equals -0.0 and NaN equals nothing."""
    if np.ndim(atom.val) > 0:
        raise UnknownError
    return ops.aval(atom), _key(np.asarray(atom.val)[()], 0)


def _key(value: Any, rules: int) -> Hashable:
    """The key of a parameter of an equation, in which programs may lie."""
    return key_of(value, functools.partial(_of_program, rules))


def _of_program(rules: int, value: ClosedJaxpr | Jaxpr) -> Hashable:
    jaxpr, consts = compat.opened(value)
    if consts or jaxpr.constvars:
        raise UnknownError
    return _program(jaxpr.invars, jaxpr.eqns, jaxpr.outvars, rules)
