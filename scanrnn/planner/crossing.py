"""Choose by a minimum cut which arrays cross from before the loop into it.

Equations after a hoisted contraction may run before the loop or in it. An array that
crosses is written once and read once per sequence, so the choice with the fewest bytes
wins. For example, if the loop needs `alpha * a`, `beta * a + b` and `a`, then only `a`
should cross. The minimum cut in the graph of values finds this choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jax.extend.core import JaxprEqn, Var
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from scanrnn.planner.costs import excess
from scanrnn.planner.graph import variables

_MANY = 2**30


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
    names = list(dict.fromkeys([*made, *xs]))
    index = {v: i for i, v in enumerate(names)}
    source, sink = 2 * len(names), 2 * len(names) + 1
    edges: dict[tuple[int, int], int] = {}
    for v, i in index.items():
        edges[2 * i, 2 * i + 1] = min(_MANY // 2, excess([v]))
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
    """The nodes on the sink's side of the minimum cut that is nearest to the sink."""
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
