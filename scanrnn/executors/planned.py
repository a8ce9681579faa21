"""The `planned` executor: it runs bodies as loops of XLA, under XLA's rules."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax
from jax.extend.core import Var

from scanrnn.executors._xla import rules as rules
from scanrnn.executors.run.names import named
from scanrnn.executors.run.ordering import copied
from scanrnn.executors.run.pin import Tile, join_axes, pin
from scanrnn.executors.run.products import copy_transposed
from scanrnn.planner import costs
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.emit import of_training
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Values
from scanrnn.planner.ir.rows import folded, put
from scanrnn.planner.motion.around import output_joins, stacked_parts
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
    placed = [v for v in graph.xs if v in rows.places or v in rows.shifts]
    indexed = {*over.values(), *rows.sources(placed)}
    arrays = _laid_out(body, arrays, indexed)
    written = [arrays.pop(v) for v in over.values()]
    inside = {v: a for v, a in arrays.items() if v in indexed}
    scanned = [v for v in graph.xs if v in arrays and v not in indexed]
    apart = [i for i in range(len(graph.ys)) if i not in over]
    # Memory that is not filled cannot have a weak type.
    theirs = [i for i in apart if rows.filled or ops.is_weak(graph.ys[i])]
    ours = [i for i in apart if i not in theirs]
    # XLA for TPU keeps an axis of size 1 in a layout of its own, and takes two thousand
    # cycles to drop it at every step.
    small = {v: _squeezed(a) for v, a in with_transposed(body, constants).items()}
    step = functools.partial(_step, body, small)

    def trip(state, x):
        (carry, written, late, count, memory), (at, xs) = state, x
        carry = [_pinned(a, body.row_tile) for a in carry]
        at = count if at is None else at
        written = rows.write(written, late, at)
        here = inside | dict(zip(over.values(), written, strict=True))
        made: list[list] = [[] for _ in graph.ys]
        for j in range(block)[:: -1 if rows.reverse else 1]:
            t, row = (at * block + j, [x[j] for x in xs]) if block > 1 else (at, xs)
            carry, ys = step(carry, here, t, dict(zip(scanned, row, strict=True)))
            for values, y in zip(made, ys, strict=True):
                values.append(y)
        made = [ys[:: -1 if rows.reverse else 1] for ys in made]
        late = [_stacked(made[i]) for i in over]
        ys = [_stacked(made[i]) if block > 1 else made[i][0] for i in theirs]
        pairs = zip(ours, memory, strict=True)
        memory = [put(a, _stacked(made[i]), at * block) for i, a in pairs]
        return (carry, written, late, rows.after(count), memory), ys

    # `lax.scan` takes no symbolic length; it finds it in the shapes of xs.
    counted = rows.filled and (indexed or block > 1 or not isinstance(rows.trips, int))
    trips = lax.iota("int32", rows.trips) if counted else None
    lead = (rows.trips, block) if block > 1 else (rows.trips,)
    xs = trips, [folded(lead, arrays[v]) for v in scanned]
    state = list(carry), written, rows.start(written), *rows.fresh(graph, ours, arrays)
    length = None if jax.tree.leaves(xs) else rows.trips
    state, ys = lax.scan(trip, state, xs, length, rows.reverse, body.unroll)
    carry, written, late, _, memory = state
    made = (*(folded((rows.length,), y, len(lead)) for y in ys), *memory)
    stacked = dict(zip(over, rows.finish(written, late), strict=True))
    made = (pin(a, body.row_tile) for a in made) if body.row_tile else made
    stacked |= dict(zip((*theirs, *ours), made, strict=True))
    return carry, [stacked[i] for i in range(len(graph.ys))]


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


def _pinned(carry, tile: Tile | None):
    """A leaf of the carry, laid out as its rows are.

    One that ends in an axis of size 1 stays as XLA lays it out. Compiled for a TPU v5e,
    training a leaky sum (128, 8, 1) took 1.8 million cycles with it pinned, and 0.97
    without.
    """
    if tile is None or carry.shape[-1:] == (1,):
        return carry
    return pin(carry, tile, 0)


def _step(body, constants, carry, here, t, scanned):
    """One step: the next carry, and the ys."""
    graph, rows = body.graph, body.rows
    values = {**constants, **scanned}
    values = {v: lax.reshape(a, ops.aval(v).shape) for v, a in values.items()}
    values |= dict(zip(graph.carry, carry, strict=True))
    values |= {v: rows.row(here, t, v) for v in graph.xs if v not in scanned}
    values |= {v: copied(values[v]) for v in body.copied}
    env = Env(graph.eqns, values)
    carry = env.read_all(graph.carry_out)
    ys = _with_own(graph, env, body.own) if body.own else env.read_all(graph.ys)
    return lax.optimization_barrier(carry) if body.separate else carry, ys


def _with_own(graph, env, own):
    """The ys of a step; a barrier stops XLA from recomputing the rows in `own`."""
    joins = output_joins(graph)
    rows = stacked_parts(graph, joins)
    # A reverse step also reads what is joined, without the barrier.
    made = named(rows, env.read_all(rows))
    made |= named(own, lax.optimization_barrier([made[v] for v in own]))
    return Env(joins, made).read_all(graph.ys)


def _stacked(rows):
    rows = [lax.expand_dims(row, [0]) for row in rows]
    return rows[0] if len(rows) == 1 else lax.concatenate(rows, 0)
