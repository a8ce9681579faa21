"""A line for every loop that runs: its steps, its products, and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scanrnn.planner.bodies import Body
from scanrnn.planner.emit import LAST, NORMS, VALUES, puts_features_first
from scanrnn.planner.ir import ops
from scanrnn.planner.report import in_parallel
from scanrnn.planner.report.wording import in_bytes, listed


def running(plan, values: bool = True) -> list[str]:
    """A line for each loop that runs; or what an executor says that has no bodies.

    `values` says whether loops for values are among them.
    """
    if plan.reason is None and plan.executor.whole:
        return plan.executor.describe(plan)
    bodies = plan.bodies.items()
    return loops(plan, {k: b for k, b in bodies if values or not k.startswith(VALUES)})


def loops(plan, bodies: Mapping[str, Body]) -> list[str]:
    """A line for each of some bodies of a plan."""
    return [
        f"Loop {name}: {'; '.join(_told(plan, name, body))}."
        for name, body in bodies.items()
    ]


def _told(plan, name: str, body: Body) -> Iterator[str]:
    graph, norms = body.graph, name.startswith(NORMS)
    yield _steps(plan, name, body)
    products = _count(sum(map(ops.is_heavy, graph.eqns)) or "no", "GEMM")
    does = f"has {products}, reads {_rows(graph.xs)}, writes {_rows(graph.ys)}"
    yield f"a {'piece' if norms else 'step'} {does}"
    parallel = plan.executor.runs_in_parallel(body)
    if not parallel:
        yield from _in_turn(plan, body)
    if parallel is not None:
        yield in_parallel.describe(body)


def _steps(plan, name: str, body: Body) -> str:
    """How many steps a loop has, and how often it runs."""
    steps, chunk = _count(body.rows.length, "step"), plan.chunk
    if name.startswith(NORMS):
        size = ops.aval(body.graph.xs[0]).shape[0]
        steps = f"{_count(body.rows.length, 'piece')} of {_count(size, 'step')}"
    if name.startswith(VALUES) and plan.value_loops:
        chunk = plan.value_chunk
    chunks = plan.length // chunk if chunk and not name.endswith(LAST) else 1
    return f"{steps} in each of {chunks} chunks" if chunks > 1 else steps


def _in_turn(plan, body: Body) -> Iterator[str]:
    """How the steps of a loop follow one another, and how its arrays lie."""
    rows = body.rows
    if rows.trip_steps > 1:
        beside = f", {_count(rows.rest, 'step')} beside it" if rows.rest else ""
        yield f"unrolled by {rows.trip_steps}, rows written together{beside}"
    if body.unroll != 1:
        factor = f"unrolled by {body.unroll}" if body.unroll else "fully unrolled"
        yield f"{factor}, rows written step by step"
    asked = ", as asked for" if plan.options.features_first is not None else ""
    if body.features_first:
        yield f"all with the features first{asked}"
    elif body.transposed:
        yield f"{len(body.transposed)} with the features first{asked}"
    elif asked and _would_change(plan, body):
        yield f"the batch first{asked}"
    if rows.over:
        yield f"{len(rows.over)} of {len(body.graph.ys)} arrays reuse memory"
    if body.copied:
        yield f"copies of the rows {listed(body.copied)}"


def _would_change(plan, body: Body) -> bool:
    """Whether the rules alone would put the features of a body first."""
    return puts_features_first(body.graph, plan.executor.executor.rules(plan.machine))


def _rows(found: Iterable) -> str:
    found = list(found)
    size = f" ({in_bytes(ops.bytes_in(found))})" if found else ""
    return f"{_count(len(found) or 'no', 'row')}{size}"


def _count(n: Any, what: str) -> str:
    """So many things; `n` may be symbolic, or a word."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
