"""Take the next value of a memory S apart: `S' = a S + v k' + ...`."""

from __future__ import annotations

from typing import Any, NamedTuple

from scanrnn.planner.ir.graph import Graph, variables
from scanrnn.planner.parallel import leaves
from scanrnn.planner.parallel.affine_rules import keeps_kind
from scanrnn.planner.parallel.factors import Factor, NoMemoryError, factors

_ADDS = ("add", "add_any", "sub")
_KEEPS = ("mul", *_ADDS)


class Term(NamedTuple):
    """What a step adds to S: a product of factors, with a sign."""

    factors: tuple[Factor, ...]
    sign: int


class Sum(NamedTuple):
    """How a step computes the next value of S.

    Attributes:
      decay: the factors that S is multiplied by.
      terms: what is added to it.
      multiples: values that are S times factors, before anything is added; each with
        these factors.
      path: the equations from S to its next value.
    """

    decay: tuple[Factor, ...]
    terms: list[Term]
    multiples: list[tuple[Any, tuple[Factor, ...]]]
    path: list


def sum_of(graph: Graph, leaf: int, before, after) -> Sum:
    """The sum that leads from the value `before` a step to that `after` it."""
    whole = _elementwise(before, leaves.path(graph, [leaf], [after]))
    multiples, value, path, terms, decay = [], after, [], [], ()
    while value is not before:
        eqn, kept = _kept(graph, value, whole)
        path.append(eqn)
        others = [a for a in eqn.invars if a is not kept]
        if eqn.primitive.name in _ADDS:
            sign = -1 if eqn.primitive.name == "sub" else 1
            if sign < 0 and eqn.invars[1] is kept:
                raise NoMemoryError("a step subtracts it")
            terms.append(Term((*factors(graph, others[0]), *decay), sign))
            # The values above are sums already: only the path may read them.
            _check_unread(graph, [v for v, _ in multiples])
            multiples = []
        elif eqn.primitive.name == "mul":
            if not leaves.is_free(graph, leaf, others[0]):
                raise NoMemoryError("what is kept is not a product")
            more = tuple(factors(graph, others[0]))
            decay = (*more, *decay)
            multiples = [(v, (*more, *of)) for v, of in multiples]
        multiples.append((kept, ()))
        value = kept
    if not terms:
        raise NoMemoryError("a step adds nothing to it")
    return Sum(decay, terms, multiples, path)


def _elementwise(S, eqns) -> set:
    """The values that equations compute from S element by element."""
    found = {S}
    for eqn in eqns:
        reads = not found.isdisjoint(variables(eqn.invars))
        found.update(eqn.outvars if reads and _is_linear(eqn) else ())
    return found


def _is_linear(eqn) -> bool:
    """Whether an equation is a sum, a product, or a cast among floats."""
    cast = eqn.primitive.name == "convert_element_type"
    return keeps_kind(eqn) if cast else eqn.primitive.name in _KEEPS


def _kept(graph: Graph, value, whole):
    """The equation that makes a value, and its operand that is computed of S."""
    eqn = graph.producer(value)
    if eqn is not None and _is_linear(eqn):
        kept = [a for a in variables(eqn.invars) if a in whole]
        if len(kept) == 1:
            return eqn, kept[0]
    raise NoMemoryError("a step is not a sum of what is kept and what is added")


def _check_unread(graph: Graph, values) -> None:
    for v in values:
        if len(graph.consumers[v]) > 1:
            raise NoMemoryError("a part of the sum is read by itself")
