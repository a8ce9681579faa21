"""Split a loop into several that run one after the other (loop fission).

The leaves of a carry that need one another stay in one loop. If others only read them,
the loop of the others runs later: it reads their values as time inputs. For example,
one step may run two layers of an RNN. Once the loop of the first layer has run, the
product of its outputs with the second layer's matrix is one product for all steps.

Each loop writes for all steps what the later ones read, and a gradient has cotangents
of the same size. So a leaf goes to a later loop only if this moves a product out of
that loop, and if no array of all steps is much larger than the leaves themselves
(`Rules.splits`).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, Values, free, needed, variables
from scanrnn.planner.motion.crossing import cheapest_crossing
from scanrnn.planner.motion.moved import is_shared
from scanrnn.planner.parallel.leaves import (
    components,
    leaves_read,
    read_after,
    set_of,
    union,
)
from scanrnn.planner.trace import inline, without_invariant


@dataclasses.dataclass(frozen=True, eq=False)
class SubLoop:
    """One of the loops into which a loop is split.

    Attributes:
      graph: its step. Its weights, and its xs that are not made by earlier loops, are
        variables of the whole step. Its first ys are ys of the whole step, the others
        are variables that later loops read.
      length: the number of steps.
      leaves: the indices of its carry in that of the whole step.
      ys: the indices of its first ys in those of the whole step.
      consts: arrays that were found in nested calls, by variable.
    """

    graph: Graph
    length: Any
    leaves: tuple[int, ...]
    ys: tuple[int, ...]
    consts: Values


def parts_of(graph: Graph, length: Any, most: int) -> tuple[SubLoop, ...]:
    """The loops of a step, in the order in which they run.

    There is none if no product would leave a later loop, or if too much would cross:
    `most` is `Rules.splits`.
    Leaves that a step returns unchanged belong to no loop: they are weights.
    """
    graph, invariant = without_invariant(graph)
    changing = [
        k for k in range(len(graph.carry) + len(invariant)) if k not in invariant
    ]
    graph, found = inline(graph)
    loops = _loops(graph, most)
    if len(loops) == 1:
        return ()
    names = graph.weights[len(graph.weights) - len(found) :]
    consts = dict(zip(names, found, strict=True))
    places = _Levels(graph, loops)
    asked: list[dict] = [{} for _ in loops]
    parts = []
    for level in reversed(range(len(loops))):
        step, leaves, ys = places.part(level, tuple(asked[level]))
        read = [v for v in step.xs if v not in graph.xs]
        if not _fits(places, step, read, most):
            return ()
        for v in read:
            asked[places.of[v]][v] = None
        own = {v: consts[v] for v in step.weights if v in consts}
        parts.append(SubLoop(step, length, tuple(changing[k] for k in leaves), ys, own))
    return tuple(parts[::-1])


def _fits(places: _Levels, step: Graph, read: list, most: int) -> bool:
    """Whether what a loop reads of earlier ones is about as large as their leaves."""
    if not read:
        return True
    size, loops = ops.bytes_in(read), {places.of[v] for v in read}
    leaves = (v for v in places.graph.carry if places.of[v] in loops)
    largest = max(map(ops.bytes_of, leaves), default=0)
    return size <= most * ops.bytes_in(step.carry) and largest <= most * size


class _Product(NamedTuple):
    """A product of a step that leaves a loop if the loop has all that it reads.

    Attributes:
      eqn: the equation.
      size: the bytes of the largest operand or result that differs between steps.
      pieces: which leaves its operands read, for each product into which it can be
        split.
      feeds: the leaves whose next values need it.
    """

    eqn: JaxprEqn
    size: int
    pieces: list[int]
    feeds: int


def _products(graph: Graph) -> list[_Product]:
    """The products of a step that may leave a loop, in order."""
    gain, found = [e for e in graph.eqns if _gains(graph, e)], []
    reads, feeds = leaves_read(graph), collections.defaultdict(int)
    for k, out in enumerate(graph.carry_out):
        for v in variables([out]):
            feeds[v] |= 1 << k
    for eqn in reversed(graph.eqns if gain else ()):
        of = union(feeds[v] for v in eqn.outvars)
        for v in variables(eqn.invars):
            feeds[v] |= of
    for eqn in gain:
        timed = filter(graph.depends.get, variables((*eqn.invars, *eqn.outvars)))
        pieces = [union(reads[v] for v in variables(p)) for p in _pieces(graph, eqn)]
        of = union(feeds[v] for v in eqn.outvars)
        found.append(_Product(eqn, max(map(ops.bytes_of, timed)), pieces, of))
    return found


def _loops(graph: Graph, most: int) -> list[int]:
    """The leaves of each loop, in the order of the loops."""
    products, after = _products(graph), read_after(graph)
    if not products:
        return [set_of(range(len(graph.carry)))]
    loops: list[int] = [0]
    bound: set[tuple[JaxprEqn, int]] = set()
    for leaves in components(graph):
        own = set_of(leaves)
        level = _last(loops, union(after[k] for k in leaves), 0)
        room = most * ops.bytes_in(graph.carry[k] for k in leaves)
        for product in products:
            if not product.feeds & own or product.size > room:
                continue
            for read in product.pieces:
                if read & own:
                    bound.add((product.eqn, read))
                elif read and (product.eqn, read) not in bound:
                    level = max(level, 1 + _last(loops, read, 0))
        if level == len(loops):
            loops.append(0)
        loops[level] |= own
    return loops


def _last(loops: list[int], leaves: int, other: int) -> int:
    """The last loop that has one of some leaves; `other` if there is none."""
    return max((i for i, of in enumerate(loops) if of & leaves), default=other)


def _gains(graph: Graph, eqn: JaxprEqn) -> bool:
    """Whether an equation leaves a loop if the loop has all that it reads as inputs."""
    bits = graph.depends
    return bits[eqn] > 0 and is_shared(eqn, bits) and ops.is_movable(eqn)


def _pieces(graph: Graph, eqn: JaxprEqn) -> list[tuple]:
    """Operands of the products into which a product of joined values can be split."""
    joined = []
    for atom in eqn.invars:
        made = graph.producer(atom)
        joins = made is not None and made.primitive.name == "concatenate"
        joined.append(made.invars if made is not None and joins else [atom])
    return list(itertools.product(*joined))


class _Levels:
    """Which part of a step makes which value."""

    def __init__(self, graph: Graph, loops: list[int]):
        reads, last = leaves_read(graph), len(loops) - 1

        def level_of(atom) -> int:
            return _last(loops, union(reads[v] for v in variables([atom])), -1)

        self.graph = graph
        self.levels = [_last(loops, 1 << k, 0) for k in range(len(graph.carry))]
        self.ys = [level_of(v) for v in graph.ys]
        self.ys = [last if level < 0 else level for level in self.ys]
        self.of = dict(zip(graph.carry, self.levels, strict=True))
        # What reads no carry, or leaves a loop, belongs to the first part that uses it.
        wanted = {}
        for level in reversed(range(last + 1)):
            wanted |= dict.fromkeys(variables(self._outs(level)), level)
        for eqn in reversed(graph.eqns):
            level = max(map(level_of, eqn.invars), default=-1)
            if level < 0 or _gains(graph, eqn):
                users = (wanted.get(v, last) for v in eqn.outvars)
                level = max(level, min(users, default=last))
            self.of |= dict.fromkeys(eqn.outvars, level)
            for v in variables(eqn.invars):
                wanted[v] = min(level, wanted.get(v, last))

    def _outs(self, level: int) -> list:
        """What a part returns of the next carry and of the ys."""
        carry = zip(self.graph.carry_out, self.levels, strict=True)
        ys = zip(self.graph.ys, self.ys, strict=True)
        return [v for v, at in (*carry, *ys) if at == level]

    def part(self, level: int, asked: tuple) -> tuple[Graph, tuple, tuple]:
        """The step of a level, which also returns what later ones ask for.

        With it, the indices of its leaves and of its ys.
        """
        graph, levels = self.graph, self.levels
        leaves = tuple(k for k, at in enumerate(levels) if at == level)
        ys = tuple(i for i, at in enumerate(self.ys) if at == level)
        wanted = (*(graph.ys[i] for i in ys), *asked)
        earlier = [v for k, v in enumerate(graph.carry) if levels[k] < level]
        before = [e for e in graph.eqns if self._is_before(e, level)]
        outs = [*self._outs(level), *asked]
        made = {v for e in before for v in e.outvars}
        stay = needed(graph.eqns, outs, made)
        crossing = cheapest_crossing(
            before,
            {e for e in before if self._once(e)},
            {*graph.xs, *earlier},
            [v for v in free(stay, outs) if v in made],
        )
        return graph.part(wanted, crossing, leaves), leaves, ys

    def _is_before(self, eqn: JaxprEqn, level: int) -> bool:
        """Whether an equation depends on time and belongs to an earlier part."""
        return bool(self.graph.depends[eqn]) and self.of[eqn.outvars[0]] < level

    def _once(self, eqn: JaxprEqn) -> bool:
        """Whether an equation takes long, so that a later part must not repeat it."""
        return ops.is_heavy(eqn) or ops.is_costly(eqn) or ops.has_subjaxpr(eqn)
