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
import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import Mesh

from scanrnn.planner.derivative.tangent import derivative_of
from scanrnn.planner.ir import compat
from scanrnn.planner.ir.graph import Graph

_FLOATS = (float, complex, np.generic)
# A rule mostly calls its own function, which has the rule, and so on without end. Rules
# are compared as far as second derivatives show them; from there on, functions alone.
_MOST_RULES = 2


class _Unknown(Exception):
    """Something whose equality does not show that two programs do the same."""


def structure(graph: Graph) -> Hashable | None:
    """A key that is equal for graphs that compute the same in the same way.

    None for a graph with something that cannot be compared: an array inside a nested
    program, a function that was made while the step was traced (the rule of a
    `jax.custom_vjp`, say), or an effect.
    """
    groups = graph.weights, graph.carry, graph.xs
    try:
        program = _program(graph.inputs, graph.eqns, graph.outs, 0)
    except _Unknown:
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
        return v.aval

    def read(atom):
        return _literal(atom) if isinstance(atom, Literal) else numbers[atom]

    def equation(eqn):
        if eqn.effects:
            raise _Unknown
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
        raise _Unknown
    program = _key(compat.program(eqn), rules)
    if rules == _MOST_RULES:
        return program, None
    rule = derivative_of(eqn)
    if rule is None:
        raise _Unknown
    return program, _key(rule, rules + 1)


def _literal(atom: Literal) -> tuple:
    """The key of a literal: its bits, as 0.0 equals -0.0 and NaN equals nothing."""
    if np.ndim(atom.val) > 0:
        raise _Unknown
    return atom.aval, _key(np.asarray(atom.val)[()], 0)


def _key(value: Any, rules: int) -> Hashable:
    """The key of a parameter of an equation, or of a part of one."""
    key = functools.partial(_key, rules=rules)
    if isinstance(value, _FLOATS):
        return type(value), np.asarray(value).tobytes()
    if isinstance(value, dict):
        return dict, tuple((name, key(item)) for name, item in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(map(key, value))
    if isinstance(value, ClosedJaxpr | Jaxpr):
        jaxpr, consts = compat.opened(value)
        if consts or jaxpr.constvars:
            raise _Unknown
        return _program(jaxpr.invars, jaxpr.eqns, jaxpr.outvars, rules)
    if isinstance(value, functools.partial):
        return functools.partial, key((value.func, value.args, value.keywords))
    # A mesh can be called too, as a decorator.
    if callable(value) and not isinstance(value, Mesh) and not _is_global(value):
        raise _Unknown
    # With the type, as True equals 1.
    return type(value), _hashable(value)


def _is_global(function: Any) -> bool:
    """Whether a function or a class can be found in its module by its name."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", None) or ""
    return bool(name) and getattr(module, name, None) is function


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        raise _Unknown from None
    return value
