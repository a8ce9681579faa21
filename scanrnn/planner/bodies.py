"""Bodies: the loops that run, as a plan gives them to its executor."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Var

from scanrnn.machines import Machine
from scanrnn.planner import ops
from scanrnn.planner.around import own_rows
from scanrnn.planner.features import features_first
from scanrnn.planner.graph import Graph, free, needed
from scanrnn.planner.loops import Loop
from scanrnn.planner.rows import Rows
from scanrnn.planner.rules import Rules


class Target(NamedTuple):
    """What bodies are made for: rules, and whether one device runs the whole loop."""

    rules: Rules
    alone: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """One loop that runs.

    A trip is one iteration of the loop; it may run several steps.

    Attributes:
      graph: one step.
      rows: the number of steps, their direction, how many steps of a trip write their
        rows together, and where the rows of each step lie.
      unroll: the unroll factor; each of these steps writes its own rows. 0 means fully
        unrolled: there is no loop.
      transposed: for some weights of the graph, the matrix that each is the transpose
        of.
      own: rows that each step computes itself. They are not recomputed where they are
        stacked.
      pinned: if given, time is the major axis of the arrays that it reads and stacks:
        the sides of a tile of memory, and the most tiles of a small row.
      separate: whether the steps of a trip are compiled one by one, so that nothing is
        fused across them.
      machine: the machine of the plan.
      keeps_inputs: whether a derivative of this loop by JAX keeps only what each step
        reads.
    """

    graph: Graph
    rows: Rows
    unroll: int = 1
    transposed: Mapping[Var, Var] = dataclasses.field(default_factory=dict)
    own: tuple[Var, ...] = ()
    pinned: tuple[int, int, int] | None = None
    separate: bool = False
    machine: Machine | None = None
    keeps_inputs: bool = False


def plain(graph: Graph, loop: Any, keeps_inputs: bool = False) -> Body:
    """A loop that JAX may differentiate; `loop` has its length, direction, unroll."""
    rows = Rows(loop.length, loop.reverse)
    return Body(graph, rows, loop.unroll, keeps_inputs=keeps_inputs)


def of_leaves(body: Body, leaves: Sequence[int]) -> Body:
    """The loop of some leaves of the carry; all else is known at all steps."""
    whole, rows = body.graph, Rows(body.rows.length, body.rows.reverse)
    carry, outs = (
        tuple(of[k] for k in leaves) for of in (whole.carry, whole.carry_out)
    )
    eqns = needed(whole.eqns, outs)
    read = [v for v in free(eqns, outs) if v not in carry]
    weights = tuple(v for v in read if v in whole.weights)
    xs = tuple(v for v in read if v not in weights)
    return Body(Graph(weights, carry, xs, tuple(eqns), outs, outs), rows, body.unroll)


def forward(loop: Loop, target: Target) -> Body:
    """The body of a forward loop, for values or one that records."""
    graph, places = loop.graph, {}
    if target.rules == loop.rules:
        graph, places = loop.laid
    over = loop.overwritten if target == Target(loop.rules) else {}
    rows = rows_of(loop, target, places=places, over=over)
    body = made(graph, rows, unrolled(loop, target, reverse=False), target)
    if rows.block > 1 and target.rules.separates_products:
        separate = body.separate or _is_full_product_step(graph)
        body = dataclasses.replace(body, separate=separate)
    return dataclasses.replace(body, machine=loop.machine)


def made(graph: Graph, rows: Rows, unroll: int, target: Target) -> Body:
    """Make a body of a graph, with the options that the rules prefer."""
    rules = target.rules
    graph, transposed = features_first(graph, rules)
    return Body(
        graph,
        rows,
        unroll,
        transposed,
        own=tuple(own_rows(graph, rows.block)),
        pinned=rules.row_tile and (*rules.row_tile, rules.row_tiles),
        separate=rows.block > 1 and _is_tiny(graph, rules),
    )


def _is_full_product_step(graph: Graph) -> bool:
    """Whether a step has a matrix product with weights and no half precision."""
    weights = {*graph.weights}
    heavy = [eqn.invars for eqn in graph.eqns if ops.is_heavy(eqn)]
    made = itertools.chain(graph.inputs, *(eqn.outvars for eqn in graph.eqns))
    half = any(ops.is_inexact(v) and ops.aval(v).dtype.itemsize < 4 for v in made)
    return not half and any(
        a in weights for a in itertools.chain(*heavy) if not ops.is_literal(a)
    )


def _is_tiny(graph: Graph, rules: Rules) -> bool:
    """Whether a step with norms has a half-precision carry of few bytes."""
    carry = [v for v in graph.carry if ops.is_inexact(v)]
    half = any(ops.aval(v).dtype.itemsize == 2 for v in carry)
    few = ops.bytes_in(carry) <= rules.separate_bytes
    return half and few and any(map(ops.is_reduction, graph.eqns))


def rows_of(loop: Loop, target: Target, **where: Any) -> Rows:
    """The rows of a loop; a trip may hold several steps."""
    rules = target.rules
    # Memory that is not filled can be given only if one device runs the loop, and only
    # if the length is a number.
    sized = target.alone and isinstance(loop.length, int)
    carry = ops.bytes_in(loop.graph.carry)
    block = rules.steps_per_trip(loop.length, carry) if loop.unroll == 1 else 1
    filled = rules.zero_fills or not sized
    rows = Rows(loop.length, loop.reverse, block=block, fenced=rules.fences)
    return dataclasses.replace(rows, filled=filled, **where)


def unrolled(loop: Loop, target: Target, reverse: bool) -> int:
    """The unroll factor of a loop or its reverse: as asked for, else as preferred."""
    if loop.unroll != 1 or not isinstance(loop.length, int):
        return loop.unroll
    row = max(map(ops.bytes_of, loop.graph.outs), default=0)
    count = len(loop.graph.carry) + len(loop.graph.ys)
    return target.rules.unrolled(row, count, reverse)
