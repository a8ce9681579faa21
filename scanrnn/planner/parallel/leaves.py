"""Which leaves of a carry the values of a step depend on.

A set of leaves is a number with a bit for each: carries with thousands of leaves (the
state of an optimizer) are common, and each value of a step has such a set.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.functions import once
from scanrnn.planner.ir.graph import Graph, variables


def union(sets: Iterable[int]) -> int:
    """The leaves of several sets."""
    return functools.reduce(operator.or_, sets, 0)


def set_of(leaves: Iterable[int]) -> int:
    """The set of some leaves, given by their indices."""
    return union(1 << k for k in leaves)


def members(leaves: int) -> Iterator[int]:
    """The indices of the leaves of a set, the lowest first."""
    while leaves:
        lowest = leaves & -leaves
        yield lowest.bit_length() - 1
        leaves ^= lowest


@once
def leaves_read(graph: Graph) -> dict[Any, int]:
    """Which leaves of the carry each value depends on."""
    reads = dict.fromkeys((*graph.weights, *graph.xs), 0)
    reads |= {v: 1 << i for i, v in enumerate(graph.carry)}
    for eqn in graph.eqns:
        of = union(reads[v] for v in variables(eqn.invars))
        reads.update(dict.fromkeys(eqn.outvars, of))
    return reads


def is_free(graph: Graph, leaf: int, atom) -> bool:
    """Whether a value does not depend on a leaf of the carry."""
    return ops.is_literal(atom) or not leaves_read(graph)[atom] >> leaf & 1


@once
def read_after(graph: Graph) -> list[int]:
    """Which leaves each leaf of the next carry reads."""
    reads = leaves_read(graph)
    return [union(reads[v] for v in variables([out])) for out in graph.carry_out]


def path(graph: Graph, leaves: Iterable[int], outs: Iterable) -> list[JaxprEqn]:
    """The equations, in order, that compute `outs` from some leaves of the carry.

    They are found from `outs`: to look through all equations for each of thousands of
    leaves would take minutes.
    """
    reads, of, makers = leaves_read(graph), set_of(leaves), graph.producers
    todo, found = variables(outs), set()
    while todo:
        v = todo.pop()
        if reads[v] & of and v in makers and makers[v] not in found:
            found.add(makers[v])
            todo += variables(makers[v].invars)
    return sorted(found, key=_order(graph).__getitem__)


@once
def _order(graph: Graph) -> dict[JaxprEqn, int]:
    return {eqn: place for place, eqn in enumerate(graph.eqns)}


@once
def components(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The leaves of a carry, in groups of leaves that depend on one another.

    A group comes after the groups that it reads.
    """
    after = read_after(graph)
    reach, known, found = [0] * len(after), {0: 0}, []
    for part in _connected(after):
        others = union(after[k] for k in members(part)) & ~part
        if others not in known:
            known[others] = union(reach[k] for k in members(others))
        whole, leaves = part | known[others], tuple(members(part))
        for k in leaves:
            reach[k] = whole
        found.append((whole.bit_count(), leaves))
    return tuple(leaves for _, leaves in sorted(found))


def _connected(after: Sequence[int]) -> Iterator[int]:
    """The sets of leaves that read one another, each after those that it reads.

    `after` has the set that each leaf reads. See Gabow, "Path-based depth-first search
    for strong and biconnected components", 2000.
    """
    seen = done = 0
    for first in range(len(after)):
        # Each set in the path reads the next one.
        todo = [] if seen >> first & 1 else [(0, 1 << first)]
        while todo:
            part, read = todo.pop()
            read &= ~(part | done)
            if read & seen:  # a set before it in the path
                before, more = todo.pop()
                todo.append((before | part, more | read))
            elif read:
                new = read & -read
                seen |= new
                todo += [(part, read), (new, after[new.bit_length() - 1])]
            elif part:
                done |= part
                yield part
