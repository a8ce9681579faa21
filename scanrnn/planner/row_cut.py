"""Choose the rows that a loop reads: those of the fewest bytes."""

from __future__ import annotations

from collections import deque

from jax.extend.core import JaxprEqn

from scanrnn.planner import ops
from scanrnn.planner.graph import Graph

# Bytes that a row of its own counts for, so that no row is divided in vain.
_ROW = 1
_END = "end"


def out_of_loop(
    graph: Graph, early: set[JaxprEqn], out: set[JaxprEqn]
) -> set[JaxprEqn]:
    """The equations that leave the loop, so that its rows have the fewest bytes.

    If several choices have as few bytes, the one is taken in which most equations
    leave the loop. This is a minimum cut: each value is an edge as wide as its bytes,
    from the equation that makes it to those that read it.

    Args:
      graph: the step.
      early: the equations that may leave the loop.
      out: those of them that leave it in any case.
    """
    flow: dict = {}
    rows = [*graph.xs, *(v for e in graph.eqns if e in out for v in e.outvars)]
    made = (v for e in graph.eqns if e in early for v in e.outvars)
    consumers = graph.consumers()
    for v in dict.fromkeys((*rows, *made)):
        _widen(flow, (v, 0), (v, 1), ops.bytes_of(v) + _ROW)
        for eqn in (e for e in consumers.get(v, ()) if e not in out):
            nexts = [(w, 0) for w in eqn.outvars] if eqn in early else [_END]
            for end in nexts:
                _widen(flow, (v, 1), end, float("inf"))
    starts = [(v, 0) for v in rows]
    while path := _path(flow, starts):
        least = min(flow[a][b] for a, b in path)
        for a, b in path:
            flow[a][b] -= least
            flow[b][a] += least
    inside = _leading_to_end(flow)
    return out | {e for e in early if not any((v, 0) in inside for v in e.outvars)}


def _widen(flow, a, b, width) -> None:
    flow.setdefault(a, {}).setdefault(b, 0)
    flow.setdefault(b, {}).setdefault(a, 0)
    flow[a][b] += width


def _path(flow, starts) -> list:
    """The edges of a shortest path to the end that is not full; empty if none."""
    came, queue = dict.fromkeys(starts), deque(starts)
    while queue:
        a = queue.popleft()
        for b, width in flow.get(a, {}).items():
            if width > 0 and b not in came:
                came[b] = a
                queue.append(b)
    path, b = [], _END
    while came.get(b) is not None:
        path.append((came[b], b))
        b = came[b]
    return path


def _leading_to_end(flow) -> set:
    """The nodes from which there still is a path to the end."""
    found, queue = {_END}, deque([_END])
    while queue:
        b = queue.popleft()
        for a in flow.get(b, {}):
            if flow[a][b] > 0 and a not in found:
                found.add(a)
                queue.append(a)
    return found
