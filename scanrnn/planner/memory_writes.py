"""The outer products that a step adds to a memory S.

Linear attention adds `v k'`. A delta rule adds `(A r + b) k'` with `r = S p`: it
corrects what S returns for p.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from scanrnn.planner import affine, ops
from scanrnn.planner.factors import Factor, viewed
from scanrnn.planner.graph import Graph, Values, needed, variables
from scanrnn.planner.memory_reads import NoMemoryError, Read
from scanrnn.planner.memory_sums import Term


class Correction(NamedTuple):
    """A factor `A r + b` of what is added. r is read of S before it is added.

    Attributes:
      read: the read that gives r.
      graph: the graph that computes A and b of a step, with the axes of r. An axis has
        size 1 where they are constant.
      constants: the values of its new constants, by variable.
    """

    read: Read
    graph: Graph
    constants: Values

    @property
    def spans(self) -> set[int]:
        """The axes of S along which A is not constant."""
        sizes = ops.aval(self.graph.ys[0]).shape
        return {i for i, n in zip(self.read.order, sizes, strict=True) if n > 1}


class Write(NamedTuple):
    """An outer product that a step adds to S.

    Attributes:
      keys: the factors that are not constant along the axis of the reads.
      values: the other factors.
      sign: 1 or -1, another factor.
      correction: a factor that depends on S, or None.
    """

    keys: tuple[Factor, ...]
    values: tuple[Factor, ...]
    sign: int
    correction: Correction | None


def write(graph: Graph, leaf: int, term: Term, axis: int, reads: Sequence) -> Write:
    """What a term of the sum adds. `reads` are all reads of S."""
    is_free = functools.partial(affine.is_free, graph, leaf)
    free = [f for f in term.factors if is_free(f.atom)]
    other = [f for f in term.factors if not is_free(f.atom)]
    if len(other) > 1:
        raise NoMemoryError("several factors of what is added read it")
    correction = _correction(graph, leaf, other[0], reads) if other else None
    keys = tuple(f for f in free if axis in f.spans)
    values = tuple(f for f in free if axis not in f.spans)
    if not keys:
        raise NoMemoryError("what is added is constant along the axis of its reads")
    return Write(keys, values, term.sign, correction)


def _correction(graph: Graph, leaf: int, factor: Factor, reads) -> Correction:
    """How a factor depends on what is read of S."""
    factor = viewed(graph, factor)
    of = _makes(needed(graph.eqns, [factor.atom]))
    found = [read for read in reads if read.out in of]
    if len(found) != 1 or found[0].after:
        raise NoMemoryError("what is added does not depend on one read of it")
    (read,) = found
    _check_alike(factor, read)
    others = [e for e in graph.eqns if read.out not in e.outvars]
    eqns = needed(others, [factor.atom])
    if graph.carry[leaf] in {v for e in eqns for v in variables(e.invars)}:
        raise NoMemoryError("what is added reads it in several ways")
    free = (v for k, v in enumerate(graph.carry) if k != leaf)
    outs = (factor.atom,)
    part = Graph(graph.weights, (read.out,), (*graph.xs, *free), tuple(eqns), outs, ())
    (group,) = affine.groups(part)
    if group.kind not in ("sum", "diagonal"):
        why = group.why or group.kind
        raise NoMemoryError(f"what is added is not affine in what is read of it: {why}")
    return Correction(read, *affine.coefficients(part, group))


def _check_alike(factor: Factor, read: Read) -> None:
    """Check that a factor has the axes of what is read."""
    sizes = ops.aval(read.out).shape
    axes = (i if n > 1 else None for i, n in zip(read.order, sizes, strict=True))
    if ops.aval(factor.atom).shape != sizes or factor.axes != tuple(axes):
        raise NoMemoryError("what is added has other axes than what is read of it")


def _makes(eqns) -> set[Any]:
    return {v for eqn in eqns for v in eqn.outvars}
