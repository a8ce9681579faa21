"""Find matrix memories: a step forgets a share of them and adds an outer product.

    S' = a S + v k'        y = S' q

Here a, k, v and q do not depend on S. What a chunk of steps reads of S is then a few
matrix products: S need not be known at every step. Linear attention, Mamba-2 and the
mLSTM are of this form.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn

from scanrnn.planner import affine, ops
from scanrnn.planner.affine import Group
from scanrnn.planner.factors import Factor, factors
from scanrnn.planner.graph import Graph


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
    after: bool


class Choice(NamedTuple):
    """A choice of S by a predicate.

    Attributes:
      factors: the predicate, as one factor.
      when: the value of the predicate.
      value: for a reset, what S is set to then, as a factor.
    """

    factors: tuple[Factor, ...]
    when: bool
    value: Factor | None = None


class Memory(NamedTuple):
    """A leaf of the carry that is a matrix memory.

    Attributes:
      leaf: its index in the carry.
      decay: the factors of a.
      keys: the factors of what is added that are not constant along `axis`.
      values: its other factors.
      reads: all reads of S in a step.
      axis: the axis that all reads sum over.
      reset: when a step first sets S to another value, the same at every step.
      held: when the new S is kept; else the step keeps the old one.
    """

    leaf: int
    decay: tuple[Factor, ...]
    keys: tuple[Factor, ...]
    values: tuple[Factor, ...]
    reads: tuple[Read, ...]
    axis: int
    reset: Choice | None = None
    held: Choice | None = None

    @property
    def decays_by_key(self) -> bool:
        """Whether a differs along the axis that is summed over."""
        return any(self.axis in factor.spans for factor in self.decay)

    @property
    def inner(self) -> set[int]:
        """The axes of S along which pairs of steps differ, and that of the reads."""
        queries = (f for read in self.reads for f in read.query)
        choices = (f for c in (self.reset, self.held) if c for f in c.factors)
        parts = (*self.keys, *self.decay, *queries, *choices)
        return {self.axis}.union(*(f.spans for f in parts))


class _NoMemoryError(Exception):
    """The reason why a leaf is not a matrix memory."""


@functools.lru_cache(maxsize=512)
def memories(graph: Graph) -> Mapping[int, Memory]:
    """The matrix memories of a step, by their leaves of the carry."""
    found = (memory(graph, group) for group in affine.groups(graph))
    return {one.leaf: one for one in found if isinstance(one, Memory)}


def memory(graph: Graph, group: Group) -> Memory | str:
    """The matrix memory that a group of leaves is, or why it is none."""
    if group.kind not in ("sum", "diagonal") or not ops.is_real(
        graph.carry[group.leaves[0]]
    ):
        return f"its leaf is {group.kind}"
    try:
        return _memory(graph, *group.leaves)
    except _NoMemoryError as error:
        return str(error)


def _memory(graph: Graph, leaf: int) -> Memory:
    before, reset = _reset(graph, leaf)
    out = affine.unrounded(graph, graph.carry_out[leaf])
    after, held, path = _held(graph, before, out)
    last, kept, added = _sum(graph, leaf, after)
    products, decay = _decay(graph, leaf, before, kept)
    path += [*products, last]
    reads = [
        *_reads(graph, leaf, before, path, after=False),
        *_reads(graph, leaf, after, path, after=True),
    ]
    if len(summed := {read.axis for read in reads}) != 1:
        raise _NoMemoryError("its reads do not sum over one axis of it")
    (axis,) = summed
    parts = factors(graph, added)
    keys = tuple(f for f in parts if axis in f.spans)
    values = tuple(f for f in parts if axis not in f.spans)
    found = Memory(leaf, tuple(decay), keys, values, tuple(reads), axis, reset, held)
    _check_axes(found, ops.aval(before).shape)
    return found


def _reset(graph: Graph, leaf: int) -> tuple[Any, Choice | None]:
    """S as a step uses it, and when it is another value than the carry."""
    before = graph.carry[leaf]
    readers = graph.consumers.get(before, [])
    eqn = readers[0] if len(readers) == 1 else None
    if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
        return before, None
    which, *cases = eqn.invars
    (fresh,) = (a for a in cases if a is not before)
    if not ops.is_literal(fresh) and graph.depends[fresh]:
        return before, None
    value = Factor(fresh, tuple(range(ops.aval(fresh).ndim)))
    when = cases[1] is fresh
    return eqn.outvars[0], Choice(tuple(factors(graph, which)), when, value)


def _held(graph: Graph, before, out) -> tuple[Any, Choice | None, list]:
    """The new S of a step, when it is kept, and the equation that keeps it."""
    eqn = graph.producer(out)
    if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
        return out, None, []
    which, *cases = eqn.invars
    others = [a for a in cases if a is not before]
    if len(others) != 1:
        return out, None, []
    choice = Choice(tuple(factors(graph, which)), cases[1] is others[0])
    return affine.unrounded(graph, others[0]), choice, [eqn]


def _check_axes(found: Memory, whole: Sequence[int]) -> None:
    """Check that what is added is an outer product: values have their own axis."""
    if not found.keys:
        raise _NoMemoryError("what is added is constant along the axis of the reads")
    if all(n == 1 for i, n in enumerate(whole) if i not in found.inner):
        raise _NoMemoryError("what is added is no outer product")


def _sum(graph: Graph, leaf: int, after) -> tuple[JaxprEqn, Any, Any]:
    """The equation of `a S + v k'`, and its two terms."""
    eqn, of = graph.producer(after), affine.leaves_read(graph)
    if eqn is not None and eqn.primitive.name in ("add", "add_any"):
        reads = [not ops.is_literal(a) and leaf in of[a] for a in eqn.invars]
        if sum(reads) == 1:
            first, second = eqn.invars
            return (eqn, first, second) if reads[0] else (eqn, second, first)
    raise _NoMemoryError("a step is not a sum of what is kept and what is added")


def _decay(
    graph: Graph, leaf: int, before, kept
) -> tuple[list[JaxprEqn], list[Factor]]:
    """The equations that multiply S, and the factors that they multiply it by."""
    path, found, of = [], [], affine.leaves_read(graph)
    while kept is not before:
        eqn = graph.producer(kept)
        if eqn is None or eqn.primitive.name not in ("mul", "convert_element_type"):
            raise _NoMemoryError("what is kept is not a product")
        if eqn.primitive.name == "mul":
            if len(graph.consumers[kept]) > 1:
                raise _NoMemoryError("what is kept is read by itself")
            path.append(eqn)
        moving = [not ops.is_literal(a) and leaf in of[a] for a in eqn.invars]
        kept = eqn.invars[moving.index(True)]
        others = (a for a, m in zip(eqn.invars, moving, strict=True) if not m)
        found += itertools.chain.from_iterable(factors(graph, a) for a in others)
    return path, found


def _reads(graph: Graph, leaf: int, S, path, after: bool) -> list[Read]:
    """All reads of S before or after a step, apart from those in `path`."""
    found = []
    for eqn in graph.consumers.get(S, []):
        if eqn is None and S is graph.carry_out[leaf] and S not in graph.ys:
            continue
        if eqn is None:
            raise _NoMemoryError("it is an output of each step")
        if eqn in path:
            continue
        if eqn.primitive.name == "convert_element_type":
            found += _reads(graph, leaf, eqn.outvars[0], path, after)
            continue
        other = _other(graph, leaf, eqn, S)
        read = _of_sum if eqn.primitive.name == "mul" else _of_dot
        found.append(read(graph, eqn, S, other)._replace(after=after))
    return found


def _other(graph: Graph, leaf: int, eqn, S):
    """The other operand of a product with S; it must be free of S."""
    if eqn.primitive.name in ("mul", "dot_general"):
        others = [a for a in eqn.invars if a is not S]
        of = affine.leaves_read(graph)
        if len(others) == 1 and (
            ops.is_literal(others[0]) or leaf not in of[others[0]]
        ):
            return others[0]
    raise _NoMemoryError(f"{eqn.primitive.name} reads it")


def _of_sum(graph: Graph, eqn, S, other) -> Read:
    """A read that multiplies, and then sums over an axis."""
    (product,) = eqn.outvars
    consumers = graph.consumers.get(product, [])
    total = consumers[0] if len(consumers) == 1 else None
    # S may have an axis of size 1 along which the query does not.
    if total is not None and ops.aval(product).shape == ops.aval(S).shape:
        if total.primitive.name == "reduce_sum" and len(total.params["axes"]) == 1:
            (axis,) = total.params["axes"]
            order = tuple(i for i in range(ops.aval(S).ndim) if i != axis)
            query = factors(graph, other)
            return Read(total.outvars[0], tuple(query), axis, order, True)
    raise _NoMemoryError("a product reads it that is not summed over one axis")


def _of_dot(graph: Graph, eqn, S, other) -> Read:
    """A read by a product of matrices: a query without axes of its own."""
    contract, batch = eqn.params["dimension_numbers"]
    ours = 0 if eqn.invars[0] is S else 1
    own = [*contract[1 - ours], *batch[1 - ours]]
    if len(contract[ours]) != 1 or len(own) != ops.aval(other).ndim:
        raise _NoMemoryError("a product of matrices reads it over several axes")
    where = dict(zip(own, [*contract[ours], *batch[ours]], strict=True))
    query = factors(graph, other, [where[i] for i in range(len(own))])
    taken = {*contract[ours], *batch[ours]}
    free = (i for i in range(ops.aval(S).ndim) if i not in taken)
    order = (*batch[ours], *free)
    return Read(eqn.outvars[0], tuple(query), contract[ours][0], order, True)
