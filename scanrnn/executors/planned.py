"""The `planned` executor: it runs bodies as loops of XLA, under XLA's rules."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.extend.core import Var

from scanrnn.executors._xla import rules as rules
from scanrnn.executors.run.names import typed
from scanrnn.executors.run.pin import join_axes, pin
from scanrnn.executors.run.products import copy_transposed
from scanrnn.executors.run.trips import Trips
from scanrnn.planner import costs
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.emit import of_training
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Values
from scanrnn.planner.ir.rows import folded
from scanrnn.planner.plan import Plan

NAME = "planned"


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here, or None."""
    if plan.unplanned is not None:
        return plan.unplanned
    work, rules = costs.operations(plan), plan.rules
    least = rules.least_work
    if costs.has_single_rows(plan):
        least = max(least, rules.least_row_work)
    asked = plan.options.implementation == NAME
    if asked or work is None or work >= least:
        return None
    return (
        f"a step is only {work} operations, too few to gain from a plan "
        "(implementation='planned' makes one)"
    )


def work(plan: Plan) -> costs.Work | None:
    """What a training step's loops take; None if each step counts as one kernel."""
    counted = plan.rules.costs.trip is not None and isinstance(plan.length, int)
    if not counted or not plan.defer:
        return None
    loops = of_training(plan.emitted)
    launches = sum(costs.launches_of_step(body, plan.rules) for body in loops)
    return costs.Work(plan.length * launches, 0.0)


def lower(body: Body, constants: Values, carry: list, arrays: Values) -> Results:
    """Run a body over all steps, as `Executor.lower` says."""
    if not body.features_first:
        return _lower(body, constants, carry, arrays)
    pairs = body.features_first.items()
    first = {v: _swapped(arrays[of]) for v, of in pairs if of in arrays}
    carry, ys = _lower(body, constants, _all_swapped(carry, 2), {**arrays, **first})
    return _all_swapped(carry, 2), _all_swapped(ys, 3)


def _all_swapped(arrays: list, axes: int) -> list:
    """The arrays with their last two axes swapped, if they have that many axes."""
    return [_swapped(a) if a.ndim == axes else a for a in arrays]


def _swapped(a):
    return lax.transpose(a, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


def _lower(body: Body, constants: Values, carry: list, arrays: Values) -> Results:
    graph, rows = body.graph, body.rows
    over, block = rows.over, rows.trip_steps
    placed = [v for v in graph.xs if v in rows.places or v in rows.shifts or rows.rest]
    indexed = {*over.values(), *rows.sources(placed)}
    arrays = _laid_out(body, arrays, indexed)
    written = [arrays.pop(v) for v in over.values()]
    inside = {v: a for v, a in arrays.items() if v in indexed}
    scanned = [v for v in graph.xs if v in arrays and v not in indexed]
    apart = [i for i in range(len(graph.ys)) if i not in over]
    # Memory that is not filled cannot have a weak type. Steps beside the loop write
    # into the same memory as the loop, so `lax.scan` cannot make it.
    scans = [i for i in apart if rows.filled or ops.is_weak(graph.ys[i])]
    theirs = [] if rows.rest else scans
    ours = [i for i in apart if i not in theirs]
    # XLA for TPU keeps an axis of size 1 in a layout of its own, and takes two thousand
    # cycles to drop it at every step.
    small = {v: _squeezed(a) for v, a in with_transposed(body, constants).items()}
    run = Trips(body, small, inside, scanned, theirs, ours)
    # `lax.scan` takes no symbolic length; it finds it in the shapes of xs.
    counted = rows.filled and (indexed or block > 1 or not isinstance(rows.trips, int))
    trips = lax.iota("int32", rows.trips) if counted else None
    lead = (rows.trips, block) if block > 1 else (rows.trips,)
    xs = trips, [folded(lead, arrays[v]) for v in scanned]
    count, memory = rows.fresh(graph, ours, arrays)
    if rows.rest and rows.reverse:
        carry, written, memory = run.rest(carry, written, memory)
    state = list(carry), written, rows.start(written), count, memory
    length = None if jax.tree.leaves(xs) else rows.trips
    state, ys = lax.scan(run.trip, state, xs, length, rows.reverse, body.unroll)
    carry, written, late, _, memory = state
    written = rows.finish(written, late)
    if rows.rest and not rows.reverse:
        carry, written, memory = run.rest(carry, written, memory)
    made = (*(folded((rows.length,), y, len(lead)) for y in ys), *memory)
    stacked = dict(zip(over, written, strict=True))
    made = (pin(a, body.row_tile) for a in made) if body.row_tile else made
    stacked |= dict(zip((*theirs, *ours), made, strict=True))
    ys = [stacked[i] for i in range(len(graph.ys))]
    return carry, typed(ys, graph.ys) if rows.rest else ys


def with_transposed(body: Body, given: Values) -> dict[Var, Any]:
    """The values of the weights, with the transposes that a body asks for."""
    transposed = {v: copy_transposed(given[of]) for v, of in body.transposed.items()}
    return {**given, **transposed}


def _squeezed(a):
    """The array without axes of size 1."""
    return lax.squeeze(a, [i for i, size in enumerate(a.shape) if size == 1])


def _laid_out(body, arrays, indexed) -> dict:
    """Arrays laid out step by step. Rows that are read in parts keep their axes."""
    tile = body.row_tile
    if tile is None:
        return dict(arrays)
    joined = {v: a if v in indexed else join_axes(a, tile) for v, a in arrays.items()}
    return {v: pin(a, tile) for v, a in joined.items()}
