"""Find leaves of a carry of the form `h' = max(h + a, b)`, or with logaddexp for max.

These are affine if a maximum takes the place of the sum, and a sum that of the product.
Examples are running maxima, the stabilisers of exponential gates, and sums of
probabilities by their logarithms.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from scanrnn.planner import ops
from scanrnn.planner.affine_rules import RULES, NotAffineError
from scanrnn.planner.axis_maps import kept, of_leaf
from scanrnn.planner.compat import opened, program
from scanrnn.planner.graph import Env, Graph, Values, graph_of, needed

# Primitives that move elements without changing them.
_MOVES = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "copy"}
# What takes the place of the sum, by the kind of a leaf.
JOINS = {"max-plus": jnp.maximum, "log-sum-exp": jnp.logaddexp}


def kind_of(graph: Graph, leaves: Sequence[int]) -> str | None:
    """The kind of `leaves`, a name in `JOINS`; None if they have no such form."""
    if len(leaves) > 1 or not ops.is_real(graph.carry[leaves[0]]):
        return None
    try:
        kinds = _depend(graph, leaves[0])
    except NotAffineError:
        return None
    return kinds.pop() if len(kinds) == 1 else None


def _join(eqn) -> str | None:
    """The kind of leaves that an equation joins, if it does."""
    if eqn.primitive.name == "max":
        return "max-plus"
    called = program(eqn)
    if called is None or len(eqn.invars) != 2 or not ops.is_inexact(eqn.outvars[0]):
        return None
    aval = ops.aval(eqn.outvars[0])
    same = str(opened(called)[0]) == _logaddexp(aval.shape, aval.dtype)
    return "log-sum-exp" if same else None


@functools.lru_cache(maxsize=128)
def _logaddexp(shape, dtype) -> str:
    """What JAX calls for `logaddexp`, as text."""
    one = jax.ShapeDtypeStruct(shape, dtype)
    (eqn,) = jax.make_jaxpr(jnp.logaddexp)(one, one).eqns
    return str(opened(program(eqn))[0])


def _depend(graph, leaf) -> set[str]:
    """The kinds of all joins of a leaf."""
    v, out = graph.carry[leaf], graph.carry_out[leaf]
    found: dict[Any, Any] = {v: of_leaf(ops.aval(v).shape)}
    kinds = set()
    for eqn in needed(graph.eqns, [out]):
        maps = [None if ops.is_literal(a) else found.get(a) for a in eqn.invars]
        moving = [m is not None for m in maps]
        if not any(moving):
            continue
        name = eqn.primitive.name
        if not _fits(eqn, moving):
            raise NotAffineError(f"{name} of the carry")
        join = _join(eqn)
        if join:
            kinds.add(join)
        rule = RULES["add" if join else name]
        found.update(zip(eqn.outvars, rule.depend(eqn, maps), strict=True))
    shape = ops.aval(v).shape
    if len(kept(found[out], shape)) != len(shape):
        raise NotAffineError("numbers are coupled")
    return kinds


def _fits(eqn, moving) -> bool:
    """Whether an equation keeps the form; `moving` operands have it."""
    name = eqn.primitive.name
    if name in ("add", "sub"):
        return not all(moving) and (moving[0] or name == "add")
    if name == "select_n":
        return not moving[0] and len(moving) == 3
    if name == "convert_element_type":
        return ops.is_real(eqn.outvars[0])
    return name in _MOVES or _join(eqn) is not None


def coefficients(graph: Graph, leaf: int) -> tuple[Graph, Values]:
    """The graph that computes `a` and `b` of a step, and its constants by variable."""
    v, out = graph.carry[leaf], graph.carry_out[leaf]
    eqns = needed(graph.eqns, [out])

    def run(values):
        free = Env(graph.eqns, values)
        found: dict[Any, tuple] = {v: (ops.zeros(ops.aval(v)), _least(v))}
        for eqn in eqns:
            if any(not ops.is_literal(a) and a in found for a in eqn.invars):
                found[eqn.outvars[0]] = _apply(eqn, found, free)
        return list(found[out])

    others = [u for u in graph.carry if u is not v]
    return graph_of(run, graph.weights, (), (*graph.xs, *others))


def plus(a, b):
    """A sum that is minus infinity wherever one of the two is: then nothing is left.

    Minus infinity is the zero of these sums. So a reset, which adds it, removes even
    infinities and NaN.
    """
    return jnp.where((a == -jnp.inf) | (b == -jnp.inf), -jnp.inf, a + b)


def _least(v):
    aval = ops.aval(v)
    return jnp.full(aval.shape, -jnp.inf, aval.dtype)


def _apply(eqn, found, free) -> tuple:
    """The pair `(a, b)` of an equation's result."""
    out, name = eqn.outvars[0], eqn.primitive.name

    def pair(atom):
        moving = not ops.is_literal(atom) and atom in found
        return found[atom] if moving else (_least(out), free.read(atom))

    if join := _join(eqn):
        pairs = zip(*map(pair, eqn.invars), strict=True)
        return tuple(JOINS[join](*both) for both in pairs)
    if name == "select_n":
        which, *cases = eqn.invars
        pairs = zip(*map(pair, cases), strict=True)
        return tuple(jnp.where(free.read(which), yes, no) for no, yes in pairs)
    if name in ("add", "sub"):
        x, y = eqn.invars
        moves = not ops.is_literal(x) and x in found
        both, other = (found[x], free.read(y)) if moves else (found[y], free.read(x))
        other = -other if name == "sub" else other
        return tuple(plus(part, other) for part in both)
    return tuple(RULES[name].apply(eqn, [part])[0] for part in found[eqn.invars[0]])
