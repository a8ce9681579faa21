"""Find what a step reads of a matrix memory S: sums over an axis of S times a query."""

from __future__ import annotations

from typing import Any, NamedTuple

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.parallel.affine_rules import keeps_kind
from scanrnn.planner.parallel.factors import Factor, NoMemoryError, factors
from scanrnn.planner.parallel.leaves import is_free


class Read(NamedTuple):
    """A sum over one axis of S times a query.

    Attributes:
      out: the variable of the result.
      query: the factors of the query.
      axis: the axis of S that is summed over.
      order: the axes of S in the result.
      after: whether it reads S after the step, and not before it.
    """

    out: Any
    query: tuple[Factor, ...]
    axis: int
    order: tuple[int, ...]
    after: bool = False


def reads(graph: Graph, leaf: int, S, path) -> list[Read]:
    """All reads of S, apart from those by the equations of `path`."""
    found = []
    for eqn in graph.consumers.get(S, []):
        if eqn is None:
            once = [*graph.carry_out, *graph.ys].count(S) == 1
            if once and S is graph.carry_out[leaf]:
                continue
            raise NoMemoryError("it is an output of each step")
        if eqn in path:
            continue
        if eqn.primitive.name == "convert_element_type" and keeps_kind(eqn):
            found += reads(graph, leaf, eqn.outvars[0], path)
            continue
        if eqn.primitive.name == "reduce_sum":
            found.append(_summed(eqn, S, ()))
            continue
        other = _other(graph, leaf, eqn, S)
        read = _of_sum if eqn.primitive.name == "mul" else _of_dot
        found.append(read(graph, eqn, S, other))
    return found


def _other(graph: Graph, leaf: int, eqn, S):
    """The other operand of a product with S; it must be free of S."""
    if eqn.primitive.name in ("mul", "dot_general"):
        others = [a for a in eqn.invars if a is not S]
        real = all(map(ops.is_real, (*others, *eqn.outvars)))
        if len(others) == 1 and real and is_free(graph, leaf, others[0]):
            return others[0]
    raise NoMemoryError(f"{eqn.primitive.name} reads it")


def _of_sum(graph: Graph, eqn, S, other) -> Read:
    """A read that multiplies, and then sums over an axis."""
    (product,) = eqn.outvars
    consumers = graph.consumers.get(product, [])
    total = consumers[0] if len(consumers) == 1 else None
    # S may have size 1 along an axis where the query has more.
    if total is not None and ops.aval(product).shape == ops.aval(S).shape:
        if total.primitive.name == "reduce_sum":
            return _summed(total, S, tuple(factors(graph, other)))
    raise NoMemoryError("a product reads it that is not summed over one axis")


def _summed(total, S, query) -> Read:
    """A read whose sum over an axis is an equation of its own."""
    if len(total.params["axes"]) != 1:
        raise NoMemoryError("it is summed over several axes")
    (axis,) = total.params["axes"]
    order = tuple(i for i in range(ops.aval(S).ndim) if i != axis)
    return Read(total.outvars[0], query, axis, order)


def _of_dot(graph: Graph, eqn, S, other) -> Read:
    """A read by a product of matrices: a query without axes of its own."""
    contract, batch = eqn.params["dimension_numbers"]
    ours = 0 if eqn.invars[0] is S else 1
    own = [*contract[1 - ours], *batch[1 - ours]]
    if len(contract[ours]) != 1 or len(own) != ops.aval(other).ndim:
        raise NoMemoryError("a product of matrices reads it over several axes")
    where = dict(zip(own, [*contract[ours], *batch[ours]], strict=True))
    query = factors(graph, other, [where[i] for i in range(len(own))])
    taken = {*contract[ours], *batch[ours]}
    free = (i for i in range(ops.aval(S).ndim) if i not in taken)
    order = (*batch[ours], *free)
    return Read(eqn.outvars[0], tuple(query), contract[ours][0], order)
