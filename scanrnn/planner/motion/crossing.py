"""Choose by a minimum cut which arrays cross from before a loop into it.

An equation that may run before the loop may also run in it. An array that crosses is
written once and read once per sequence, so the choice with the fewest bytes wins. For
example, if the loop needs `alpha * a`, `beta * a + b` and `a`, then only `a` should
cross. The minimum cut in the graph of values finds this choice. Each value is an edge
as wide as its bytes, from the equation that makes it to those that read it.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn, Var
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, variables

_START, _END = "start", "end"
# The width of an edge that is never cut.
MANY = 2**30


def cheapest_crossing(
    hoisted: Sequence[JaxprEqn],
    must: set[JaxprEqn],
    xs: set[Var],
    wanted: Iterable[Var],
) -> set[Var]:
    """The variables that must cross into the loop so that it can compute `wanted`.

    Args:
      hoisted: equations that may run before the loop, in order.
      must: those of them that must run before it; the loop may run the others.
      xs: the step's time inputs.
      wanted: time-parallel variables that the loop reads.

    Returns:
      The outputs of `hoisted` that cross; of equal choices, the latest.
    """
    made = [v for e in hoisted for v in e.outvars]
    names = dict.fromkeys([*made, *xs])
    edges: dict[tuple[Any, Any], int] = {((v, 0), (v, 1)): width(v) for v in names}
    for eqn in hoisted:
        read = [u for u in variables(eqn.invars) if u in names]
        edges |= {((u, 1), (v, 0)): MANY for u in read for v in eqn.outvars}
    starts = (v for e in hoisted if e in must for v in e.outvars)
    cut = cheapest_cut(edges, [*xs, *starts], (v for v in wanted if v in names))
    return {v for v in made if v in cut}


def out_of_loop(
    graph: Graph, early: set[JaxprEqn], out: set[JaxprEqn]
) -> set[JaxprEqn]:
    """The equations that leave the loop, so that its rows have the fewest bytes.

    If several choices have as few bytes, the one is taken in which most equations
    leave the loop. A split stays in it if the loop reads all parts: they would be more
    rows, in vain.

    Args:
      graph: the step.
      early: the equations that may leave the loop.
      out: those of them that leave it in any case.
    """
    if early <= out:
        return out
    rows = [*graph.xs, *(v for e in graph.eqns if e in out for v in e.outvars)]
    made = (v for e in graph.eqns if e in early for v in e.outvars)
    edges: dict[tuple[Any, Any], int] = {(_START, (v, 0)): MANY for v in rows}
    consumers = graph.consumers
    for v in dict.fromkeys((*rows, *made)):
        edges[(v, 0), (v, 1)] = width(v)
        for eqn in (e for e in consumers.get(v, ()) if e not in out):
            ends = [(w, 0) for w in eqn.outvars] if eqn in early else [_END]
            edges |= {((v, 1), end): MANY for end in ends}
    below = _end_side(edges)
    left = {e for e in early if not any((v, 0) in below for v in e.outvars)} | out

    def divides(eqn) -> bool:
        users = itertools.chain(*(consumers.get(v, ()) for v in eqn.outvars))
        return eqn.primitive.name == "split" and left.isdisjoint(users)

    return left - {e for e in left - out if divides(e)}


def cheapest_cut(
    edges: dict[tuple[Any, Any], int], starts: Iterable[Var], ends: Iterable[Var]
) -> set[Var]:
    """The values with the fewest bytes without which nothing leads from start to end.

    Args:
      edges: from `(v, 0)` to `(v, 1)` for a value, as wide as its bytes, and from the
        values that an equation reads to those that it makes.
      starts: the values where ways start.
      ends: the values where they end.

    Returns:
      Values of the cut; of equal cuts, the latest.
    """
    edges = edges | {(_START, (v, 0)): MANY for v in starts}
    edges |= {((v, 1), _END): MANY for v in ends}
    below = _end_side(edges)
    values = {node[0] for node in below if isinstance(node, tuple)}
    return {v for v in values if (v, 1) in below and (v, 0) not in below}


def width(v: Var) -> int:
    """The bytes of a value, as the width of its edge."""
    return min(MANY // 2, ops.bytes_of(v))


def _end_side(edges: Mapping[tuple[Any, Any], int]) -> set:
    """The nodes on the end's side of the minimum cut that is nearest to the end."""
    if not edges:
        return set()
    nodes = [*dict.fromkeys([_START, _END, *itertools.chain(*edges)])]
    at = {node: i for i, node in enumerate(nodes)}
    widths = {(at[a], at[b]): width for (a, b), width in edges.items()}
    ends = np.array([*widths], np.int32).T
    data = np.fromiter(widths.values(), np.int32)
    capacity = csr_array((data, ends), (len(nodes), len(nodes)))
    flow = maximum_flow(capacity, at[_START], at[_END]).flow.tocoo()
    # What could still flow into each node, also by less flow in the other direction.
    # These graphs are small: in Python this is faster than by sparse matrices.
    sources = collections.defaultdict(list)
    flows = map(np.ndarray.tolist, (flow.row, flow.col, flow.data))
    for a, b, used in zip(*flows, strict=True):
        if widths.get((a, b), 0) > used:
            sources[b].append(a)
    reached = todo = {at[_END]}
    while todo:
        todo = {a for b in todo for a in sources[b]} - reached
        reached = reached | todo
    return {nodes[i] for i in reached}
