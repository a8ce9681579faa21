"""Which arrays cross from before the loop into it: a minimum cut.

Equations after a hoisted contraction may run before the loop or in it. What
crosses is written once and read once per sequence, so the fewest bytes win:
`alpha * a`, `beta * a + b` and `a` itself may all be wanted inside, and then
only `a` should cross. The cut of least weight in the graph of values says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jax.extend.core import JaxprEqn, Var
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from scanrnn.planner import ops
from scanrnn.planner.graph import variables

_MANY = 2**30


def cheapest_crossing(
    hoisted: Sequence[JaxprEqn],
    must: set[JaxprEqn],
    xs: set[Var],
    wanted: Iterable[Var],
) -> set[Var]:
    """The variables to carry into the loop so that `wanted` can be had there.

    Args:
      hoisted: equations that may run before the loop, in order.
      must: those of them that have to; the others may be left to the loop.
      xs: the step's time inputs.
      wanted: time-parallel variables the loop reads.

    Returns:
      Variables made by `hoisted` that cross, latest where there is a choice.
    """
    made = [v for e in hoisted for v in e.outvars]
    names = list(dict.fromkeys([*made, *xs]))
    index = {v: i for i, v in enumerate(names)}
    source, sink = 2 * len(names), 2 * len(names) + 1
    edges: dict[tuple[int, int], int] = {}
    for v, i in index.items():
        edges[2 * i, 2 * i + 1] = min(_MANY // 2, ops.bytes_of(v))
        if v in xs:
            edges[source, 2 * i] = _MANY
    for eqn in hoisted:
        for v in eqn.outvars:
            if eqn in must:
                edges[source, 2 * index[v]] = _MANY
            for u in (u for u in variables(eqn.invars) if u in index):
                edges[2 * index[u] + 1, 2 * index[v]] = _MANY
    for v in wanted:
        if v in index:
            edges[2 * index[v] + 1, sink] = _MANY
    below = _sink_side(edges, source, sink)
    return {v for v in made if 2 * index[v] + 1 in below and 2 * index[v] not in below}


def _sink_side(edges, source, sink) -> set[int]:
    """Nodes on the sink's side of the minimum cut nearest to the sink."""
    if not edges:
        return set()
    (rows, cols), weights = np.array(list(edges)).T, list(edges.values())
    size = sink + 1
    capacity = csr_array((np.array(weights, np.int32), (rows, cols)), (size, size))
    flow = maximum_flow(capacity, source, sink).flow
    left = capacity - flow
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    reached = breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)
    return set(reached.tolist())
