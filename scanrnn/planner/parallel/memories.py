"""Find matrix memories: a step forgets a share of them and adds outer products.

    S' = a S + v k'        y = S' q

Here a, k and q do not depend on S, and v at most on what the step has read of S. What a
chunk of steps reads of S is then a few matrix products: S need not be known at every
step. Linear attention, Mamba-2, the mLSTM and the delta rules are of this form.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.functions import once
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.parallel import affine
from scanrnn.planner.parallel.affine import Group
from scanrnn.planner.parallel.factors import Factor, NoMemoryError, factors
from scanrnn.planner.parallel.leaves import is_free
from scanrnn.planner.parallel.memory_reads import Read, reads
from scanrnn.planner.parallel.memory_sums import sum_of
from scanrnn.planner.parallel.memory_writes import Correction, Write, write


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
      writes: what is added. The last one alone may depend on S.
      reads: the reads of S whose results the rest of the step needs.
      axis: the axis that all reads sum over.
      reset: when a step first sets S to another value, the same at every step.
      held: when the new S is kept; else the step keeps the old one.
    """

    leaf: int
    decay: tuple[Factor, ...]
    writes: tuple[Write, ...]
    reads: tuple[Read, ...]
    axis: int
    reset: Choice | None = None
    held: Choice | None = None

    @property
    def decays_by_key(self) -> bool:
        """Whether a differs along the axis that is summed over."""
        return any(self.axis in factor.spans for factor in self.decay)

    @property
    def correction(self) -> Correction | None:
        """How the last write depends on S."""
        return self.writes[-1].correction

    def matrix(self, rank: int) -> set[int]:
        """The axes of one of the matrices: all but those that count matrices."""
        keys = (f.spans for added in self.writes for f in added.keys)
        return {self.axis, *range(rank)} - (set().union(*keys) - {self.axis})

    @property
    def inner(self) -> set[int]:
        """The axes of S that arrays of pairs of steps have, and that of the reads."""
        choices = (f for c in (self.reset, self.held) if c for f in c.factors)
        parts = [*self.decay, *choices]
        for asked in self.reads:
            parts += asked.query
        for added in self.writes:
            parts += added.keys
        found = {self.axis}.union(*(f.spans for f in parts))
        if self.correction is None:
            return found
        parts = [*self.correction.read.query, *self.writes[-1].values]
        return found.union(self.correction.spans, *(f.spans for f in parts))


@once
def memories(graph: Graph) -> Mapping[int, Memory]:
    """The matrix memories of a step, by their leaves of the carry."""
    found = (memory(graph, group) for group in affine.groups(graph))
    return {one.leaf: one for one in found if isinstance(one, Memory)}


def memory(graph: Graph, group: Group) -> Memory | str:
    """The matrix memory that a group of leaves is, or why it is none."""
    single = len(group.leaves) == 1 and ops.is_real(graph.carry[group.leaves[0]])
    if not single or group.kind not in ("sum", "diagonal", "block", "sequential"):
        return f"its leaf is {group.kind}"
    try:
        return _memory(graph, *group.leaves)
    except NoMemoryError as error:
        return str(error)


def _memory(graph: Graph, leaf: int) -> Memory:
    before, reset = _reset(graph, leaf)
    out = affine.unrounded(graph, graph.carry_out[leaf])
    after, held, path = _held(graph, leaf, before, out)
    total = sum_of(graph, leaf, before, after)
    path += total.path
    asked = [read._replace(after=True) for read in reads(graph, leaf, after, path)]
    for value, decay in total.multiples:
        for read in reads(graph, leaf, value, path):
            asked.append(read._replace(query=(*read.query, *decay)))
    if not asked:
        raise NoMemoryError("nothing reads it by a sum over one of its axes")
    if len(summed := {read.axis for read in asked}) != 1:
        raise NoMemoryError("its reads do not sum over one axis of it")
    (axis,) = summed
    for choice in filter(None, (reset, held)):
        if any(axis in factor.spans for factor in choice.factors):
            raise NoMemoryError(
                "it is set anew or kept in parts of a sum that reads it"
            )
    writes = [write(graph, leaf, term, axis, asked) for term in total.terms]
    writes.sort(key=lambda one: one.correction is not None)
    if any(one.correction for one in writes[:-1]):
        raise NoMemoryError("several terms of what is added read it")
    if not held and not reset:
        asked = _read_elsewhere(graph, leaf, asked)
    later = _computed_later(graph, leaf)
    for factor in itertools.chain(*(read.query for read in asked)):
        if not all(is_free(graph, k, factor.atom) for k in later):
            raise NoMemoryError("a query depends on what a step reads of it")
    parts = tuple(writes), tuple(asked), axis, reset, held
    found = Memory(leaf, total.decay, *parts)
    _check_axes(found, ops.aval(before).shape)
    return found


def _read_elsewhere(graph: Graph, leaf: int, asked: Sequence[Read]) -> list[Read]:
    """The reads that the rest of the step needs, and not only the next S."""
    outs = [*graph.ys, *(v for k, v in enumerate(graph.carry_out) if k != leaf)]
    needs = graph.part(outs, [read.out for read in asked]).xs
    return [read for read in asked if read.out in needs]


def _computed_later(graph: Graph, leaf: int) -> list[int]:
    """The leaves whose values are computed after those of a leaf."""
    leaves = [k for group in affine.groups(graph) for k in group.leaves]
    return leaves[leaves.index(leaf) + 1 :]


def _reset(graph: Graph, leaf: int) -> tuple[Any, Choice | None]:
    """S as a step uses it, and when it is another value than the carry."""
    before = graph.carry[leaf]
    readers = graph.consumers.get(before, [])
    eqn = readers[0] if len(readers) == 1 else None
    if eqn is None or not _is_choice(eqn):
        return before, None
    which, *cases = eqn.invars
    (fresh,) = (a for a in cases if a is not before)
    constant = ops.is_literal(fresh) or not graph.depends[fresh]
    if not constant or not is_free(graph, leaf, which):
        return before, None
    value = Factor(fresh, tuple(range(ops.aval(fresh).ndim)))
    when = cases[1] is fresh
    return eqn.outvars[0], Choice(tuple(factors(graph, which)), when, value)


def _is_choice(eqn) -> bool:
    """Whether an equation takes one of two values."""
    return eqn.primitive.name == "select_n" and len(eqn.invars) == 3


def _held(graph: Graph, leaf: int, before, out) -> tuple[Any, Choice | None, list]:
    """The new S of a step, when it is kept, and the equation that keeps it."""
    eqn = graph.producer(out)
    if eqn is None or not _is_choice(eqn):
        return out, None, []
    which, *cases = eqn.invars
    others = [a for a in cases if a is not before]
    if len(others) != 1 or not is_free(graph, leaf, which):
        return out, None, []
    if reads(graph, leaf, eqn.outvars[0], []):
        raise NoMemoryError("a step reads what it keeps of a step that does not count")
    choice = Choice(tuple(factors(graph, which)), cases[1] is others[0])
    return affine.unrounded(graph, others[0]), choice, [eqn]


def _check_axes(found: Memory, whole: Sequence[int]) -> None:
    """Check that what is added are outer products: values have their own axis."""
    if all(n == 1 for i, n in enumerate(whole) if i not in found.inner):
        raise NoMemoryError("what is added is no outer product")
