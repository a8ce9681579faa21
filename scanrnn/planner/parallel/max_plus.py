"""Find leaves of a carry of the form `h' = max(h + a, b)`, or with logaddexp for max.

These are affine if a maximum takes the place of the sum, and a sum that of the product.
Examples are running maxima, the stabilisers of exponential gates, and sums of
probabilities by their logarithms.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.compat import opened, program
from scanrnn.planner.ir.graph import Env, Graph, Values
from scanrnn.planner.ir.retrace import graph_of
from scanrnn.planner.parallel.affine_rules import RULES, NotAffineError
from scanrnn.planner.parallel.axis_maps import kept, of_leaf
from scanrnn.planner.parallel.leaves import path

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
    """The kind, a name in `JOINS`, of an equation that is a join; None for others."""
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
    for eqn in path(graph, [leaf], [out]):
        maps = [None if ops.is_literal(a) else found.get(a) for a in eqn.invars]
        dependent = [m is not None for m in maps]
        name = eqn.primitive.name
        if not _fits(eqn, dependent):
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


def _fits(eqn, dependent) -> bool:
    """Whether an equation keeps the form; `dependent` operands have it."""
    name = eqn.primitive.name
    if name in ("add", "sub"):
        return not all(dependent) and (dependent[0] or name == "add")
    if name == "select_n":
        return not dependent[0] and len(dependent) == 3
    if name == "convert_element_type":
        return ops.is_real(eqn.outvars[0])
    return name in _MOVES or _join(eqn) is not None


def coefficients(graph: Graph, leaf: int) -> tuple[Graph, Values]:
    """The graph that computes `a`, `b` and `gone` of a step, and its constants.

    `gone` is where a step sets the leaf to a value without the carry, as a reset does.
    There `a` means nothing.
    """
    v, out = graph.carry[leaf], graph.carry_out[leaf]
    eqns = path(graph, [leaf], [out])

    def run(values):
        free = Env(graph.eqns, values)
        zeros = ops.zeros(ops.aval(v))
        found: dict[Any, _Form] = {v: _Form(zeros, None, jnp.zeros_like(zeros, bool))}
        for eqn in eqns:
            found[eqn.outvars[0]] = _apply(eqn, found, free)
        a, b, gone = found[out]
        return [a, _least(out) if b is None else b, gone]

    others = [u for u in graph.carry if u is not v]
    return graph_of(run, graph.weights, (), (*graph.xs, *others))


def _least(v):
    aval = ops.aval(v)
    return jnp.full(aval.shape, -jnp.inf, aval.dtype)


class _Form(NamedTuple):
    """A value `join(h + a, b)` of a step; or b alone, where h is gone.

    Attributes:
      a: what is added to h.
      b: what it is joined with; None for nothing.
      gone: where the value does not depend on h.
    """

    a: Any
    b: Any
    gone: Any

    def mapped(self, change) -> _Form:
        """The form after an equation that moves elements."""
        b = None if self.b is None else change(self.b)
        return _Form(change(self.a), b, change(self.gone))


def _apply(eqn, found, free) -> _Form:
    """The form of an equation's result."""
    out, name = eqn.outvars[0], eqn.primitive.name

    def form(atom):
        if not ops.is_literal(atom) and atom in found:
            return found[atom]
        shape, dtype = ops.aval(out).shape, ops.aval(out).dtype
        value = jnp.broadcast_to(jnp.asarray(free.read(atom), dtype), shape)
        return _Form(_least(out), value, jnp.ones(shape, bool))

    if kind := _join(eqn):
        x, y = map(form, eqn.invars)
        join = functools.partial(_joined, JOINS[kind])
        return _Form(JOINS[kind](x.a, y.a), join(x.b, y.b), x.gone & y.gone)
    if name == "select_n":
        which, *cases = eqn.invars
        no, yes = map(form, cases)
        choose = functools.partial(jnp.where, free.read(which))
        b = None
        if no.b is not None or yes.b is not None:
            b = choose(*(_least(out) if c.b is None else c.b for c in (yes, no)))
        return _Form(choose(yes.a, no.a), b, choose(yes.gone, no.gone))
    if name in ("add", "sub"):
        x, y = eqn.invars
        moves = not ops.is_literal(x) and x in found
        of, other = (found[x], free.read(y)) if moves else (found[y], free.read(x))
        other = -other if name == "sub" else other
        b = None if of.b is None else of.b + other
        return _Form(of.a + other, b, of.gone & jnp.ones(ops.aval(out).shape, bool))
    of = found[eqn.invars[0]]
    if name == "convert_element_type":
        cast = functools.partial(jnp.asarray, dtype=ops.aval(out).dtype)
        return of.mapped(cast)._replace(gone=of.gone)
    return of.mapped(lambda part: RULES[name].apply(eqn, [part])[0])


def _joined(join, x, y):
    """Join two values, of which one may be nothing."""
    if x is None or y is None:
        return y if x is None else x
    return join(x, y)
