"""The outer products that a step adds to a memory S.

Linear attention adds `v k'`. A delta rule adds `(A r + b) k'` with `r = S p`: it
corrects what S returns for p.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, Values
from scanrnn.planner.parallel import affine, leaves
from scanrnn.planner.parallel.factors import Factor, NoMemoryError, placed, viewed
from scanrnn.planner.parallel.memory_reads import Read
from scanrnn.planner.parallel.memory_sums import Term


class Correction(NamedTuple):
    """A factor `A r + b` of an added term; r is read from S before the addition.

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
        return {i for i, n in zip(self.read.order, sizes, strict=True) if n != 1}


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
    is_free = functools.partial(leaves.is_free, graph, leaf)
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
    part = graph.part([factor.atom], [read.out for read in reads])
    found = [read for read in reads if read.out in part.xs]
    if len(found) != 1 or graph.carry[leaf] in part.xs:
        raise NoMemoryError("what is added does not depend on one read of it alone")
    (read,) = found
    alike = factor.axes == placed(read.out, read.order).axes
    if not alike or ops.aval(factor.atom).shape != ops.aval(read.out).shape:
        raise NoMemoryError("what is added has other axes than what is read of it")
    xs = tuple(v for v in part.xs if v is not read.out)
    part = dataclasses.replace(part, carry=(read.out,), xs=xs, carry_out=part.ys, ys=())
    (group,) = affine.groups(part)
    if group.kind not in ("sum", "diagonal"):
        why = group.why or group.kind
        raise NoMemoryError(f"what is added is not affine in what is read of it: {why}")
    return Correction(read, *affine.coefficients(part, group))
