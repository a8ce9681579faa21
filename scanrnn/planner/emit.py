"""Emit the bodies of a plan: all its loops, as they run on a target.

The reverse loop runs from the last step to the first, and stacks the cotangents of what
entered at each step. It may reuse the buffers of the residuals: once it has passed a
step, nothing reads the residuals of that step.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Var

from scanrnn.planner.bodies import Body, Target
from scanrnn.planner.derivative.steps import Step
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.batching import REFUSALS
from scanrnn.planner.ir.graph import Graph, Values, free, variables
from scanrnn.planner.ir.rows import Rows, pair_up
from scanrnn.planner.loops import Loop
from scanrnn.planner.motion.around import around, own_rows
from scanrnn.planner.norms import norms_body
from scanrnn.planner.passes.factors import small_factors_first
from scanrnn.planner.passes.features import features_first, is_features_first
from scanrnn.planner.passes.features import puts_features_first as puts_features_first
from scanrnn.planner.passes.spread import spread_rows
from scanrnn.planner.passes.tidy import squeeze_reductions
from scanrnn.planner.passes.transposed import transposed
from scanrnn.planner.rules import Rules

# The loop for a whole chunk (or the whole sequence), then that for the steps left over.
LAST = ", for the last steps"
_PARTS = ("", LAST)
# Names of loops: without a gradient; the two of a training step; those of its norms.
VALUES, RECORDS, REVERSE = "for values", "that records", "in reverse"
NORMS = "of norms in reverse"


def plain(graph: Graph, length, reverse=False, unroll: int = 1, **more) -> Body:
    """A loop that JAX may differentiate; `more` are fields of `Body`."""
    return Body(graph, Rows(length, reverse), unroll, **more)


def of_training(bodies: Mapping[str, Body]) -> list[Body]:
    """The bodies of a training step, without those of norms and of the last steps."""
    return [bodies[name] for name in (RECORDS, REVERSE) if name in bodies]


def of_leaves(body: Body, leaves: Sequence[int]) -> Body:
    """The loop of some leaves of the carry; all else is known at all steps."""
    outs = [body.graph.carry_out[k] for k in leaves]
    graph, rows = body.graph.part(outs, (), leaves), body.rows
    return plain(graph, rows.length, rows.reverse, body.unroll)


class Reverse(NamedTuple):
    """What a gradient runs for a loop.

    Attributes:
      before: the work before the reverse loop, for all steps at once.
      body: the reverse loop.
      rows: the variables of its ys.
      after: the work after it, for all steps at once. It reads these rows, and rows
        that the loop only reads, such as the cotangent of a result of a product.
      consts: constants of the body, by variable; they are its last weights.
    """

    before: Graph
    body: Body
    rows: tuple[Var, ...]
    after: Graph
    consts: Values


@dataclasses.dataclass(frozen=True, eq=False)
class Bodies:
    """All loops that run for one `Loop` on one target. It is made once for each target.

    Which loops a gradient runs depends on what has tangents and cotangents, and JAX
    says this only when it transposes.
    """

    loop: Loop
    target: Target

    @property
    def is_for_plan(self) -> bool:
        """Whether the plan was made for this target: only then is memory reused."""
        return self.target == Target(self.loop.rules)

    def forward(self) -> Body:
        """The forward loop, for values or one that records."""
        loop, rules = self.loop, self.target.rules
        graph, places = loop.laid if rules == loop.rules else (loop.graph, {})
        over = loop.overwritten if self.is_for_plan else {}
        body = self._body(graph, self._rows(places=places, over=over), reverse=False)
        if body.rows.trip_steps > 1 and rules.trips.separates_products:
            separate = body.separate or _is_full_product_step(graph)
            body = dataclasses.replace(body, separate=separate)
        return body

    def reverse(self, step: Step, given: tuple[Var, ...]) -> Reverse:
        """The reverse loop: the transpose of the loop of tangents.

        `given` are the ys of the step of the tangents whose cotangents are given.
        """
        loop, recorded = self.loop, self.loop.recording.rows
        whole = loop.steps.reverse(step, given)
        before, graph, after = around(
            whole.graph, loop.precomputes, loop.rules.precomputes_sums
        )
        graph = _without_passed(graph)
        memory, over = {}, {}
        if self.is_for_plan:
            memory = pair_up(graph.ys, loop.dead)
            over = _overwritten(loop, graph, after, given) if loop.in_place else {}
        where = {"places": recorded.places, "shifts": recorded.shifts}
        where |= {"over": over, "memory": memory, "reverse": not loop.reverse}
        body = self._body(graph, self._rows(**where), reverse=True)
        return Reverse(before, body, tuple(variables(graph.ys)), after, whole.consts)

    def norms(
        self, graph: Graph, active: Sequence[Var], given: Iterable[Any]
    ) -> tuple[Body, Values] | None:
        """The loop for the cotangents of norms, as `pieces` makes it; None if none."""
        if self.loop.norm_steps is None or not self.is_for_plan:
            return None
        return norms_body(graph, self.loop, active, given)

    def _body(self, graph: Graph, rows: Rows, reverse: bool) -> Body:
        """A body of a graph, with the options that the rules prefer."""
        rules = self.target.rules
        whole = transposed(graph, rows) if is_features_first(graph, rules) else None
        first: Mapping[Var, Var] = {}
        if whole is None:
            graph, weights = features_first(graph, rules)
        else:
            graph, rows, first, weights = whole
        if rules.small_factors_first:
            simpler, consts = small_factors_first(graph)
            graph = graph if consts else simpler
        if rules.squeezes_reductions:
            squeezed, consts = squeeze_reductions(graph)
            graph = graph if consts else squeezed
        copies = rules.spreads if self.target.alone else None
        return Body(
            graph,
            rows,
            self._unroll(reverse),
            weights,
            first,
            own=tuple(own_rows(graph, rows.trip_steps)),
            copied=spread_rows(graph, copies) if copies else (),
            row_tile=rules.row_tile,
            scans=rules.scans,
            separate=rows.trip_steps > 1 and _is_tiny(graph, rules),
            machine=self.loop.machine,
        )

    def _rows(self, **where: Any) -> Rows:
        """The rows of the loop; a trip may hold several steps."""
        loop, rules = self.loop, self.target.rules
        # Memory that is not filled can be given only if one device runs the loop, and
        # only if the length is a number.
        sized = self.target.alone and isinstance(loop.length, int)
        carry, block = ops.bytes_in(loop.graph.carry), 1
        if loop.unroll == 1:
            pointwise = _is_pointwise(loop.graph)
            block = rules.trips.block(loop.length, carry, pointwise, rest=sized)
        filled = rules.zero_fills or not sized
        rows = Rows(loop.length, loop.reverse, trip_steps=block, fenced=rules.fences)
        return dataclasses.replace(rows, filled=filled, **where)

    def _unroll(self, reverse: bool) -> int:
        """The unroll factor: as asked for, else as preferred."""
        loop = self.loop
        if loop.unroll != 1 or not isinstance(loop.length, int):
            return loop.unroll
        row = max(map(ops.bytes_of, loop.graph.outs), default=0)
        count = len(loop.graph.carry) + len(loop.graph.ys)
        return self.target.rules.unroll.factor(row, count, reverse)


def _without_passed(graph: Graph) -> Graph:
    """A step that does not stack again what it reads as rows."""
    ys = tuple(v for v in graph.ys if v not in graph.xs)
    read = free(graph.eqns, (*graph.carry_out, *ys))
    xs = tuple(v for v in graph.xs if v in read)
    return dataclasses.replace(graph, xs=xs, ys=ys)


def _is_full_product_step(graph: Graph) -> bool:
    """Whether a step has a matrix product with weights and no half precision."""
    multiplied = (variables(e.invars) for e in graph.eqns if ops.is_heavy(e))
    values = itertools.chain(graph.inputs, *(e.outvars for e in graph.eqns))
    half = any(ops.is_inexact(v) and ops.aval(v).dtype.itemsize < 4 for v in values)
    return not half and not {*graph.weights}.isdisjoint(itertools.chain(*multiplied))


def _is_pointwise(graph: Graph) -> bool:
    """Whether a step computes each number of its results by itself."""
    return not any(ops.is_heavy(e) or ops.is_reduction(e) for e in graph.eqns)


def _is_tiny(graph: Graph, rules: Rules) -> bool:
    """Whether a step with norms has a half-precision carry of few bytes."""
    carry = [v for v in graph.carry if ops.is_inexact(v)]
    half = any(ops.aval(v).dtype.itemsize == 2 for v in carry)
    few = ops.bytes_in(carry) <= rules.trips.separate
    return half and few and any(map(ops.is_reduction, graph.eqns))


def _overwritten(loop, graph, after, given) -> dict[int, Var]:
    """For some stacked outputs, by index, the array whose buffer they reuse.

    They reuse residuals, else incoming cotangents. A shift may still be read from such
    an array: it reads a row that is not yet written.
    """
    derivative, rows = loop.derivative, loop.recording.rows
    needed = {*loop.graph.ys, *derivative.read_outside, *after.xs}
    needed |= {*loop.graph.xs} - loop.spare
    needed |= {*rows.sources(needed)}
    free = [v for v in loop.read_inside if v not in needed and v not in rows.shifts]
    return pair_up(graph.ys, [*free, *(derivative.cotangents[v] for v in given)])


def for_values(plan, target: Target) -> dict[str, Body]:
    """The bodies that run on a target if there is no gradient, by name."""
    pairs = zip(plan.value_loops or plan.loops, _PARTS, strict=False)
    return {f"{VALUES}{part}": Bodies(loop, target).forward() for loop, part in pairs}


def emit(plan) -> dict[str, Body]:
    """The bodies of a plan, by name.

    The bodies of a gradient are for a gradient of all inputs. For a gradient of fewer
    inputs they may be smaller.
    """
    target = Target(plan.rules)
    if not plan.defer:
        pairs = zip(plan.loops, _PARTS, strict=False)
        name = "that JAX differentiates"
        return {
            f"{name}{part}": plain(loop.graph, loop.length, loop.reverse, loop.unroll)
            for loop, part in pairs
        }
    found = for_values(plan, target)
    for loop, part in zip(plan.loops, _PARTS, strict=False):
        found[f"{RECORDS}{part}"] = Bodies(loop.recording.loop, target).forward()
        made = Bodies(loop, target)
        more = {REVERSE: _reverse(made), NORMS: _norms(made, plan.stages.norms)}
        found |= {f"{name}{part}": body for name, body in more.items() if body}
    return found


def _reverse(made: Bodies) -> Body | None:
    """The reverse loop; None if there is none."""
    graph, d = made.loop.graph, made.loop.derivative
    active = {*graph.carry, *d.cuts, *d.inner_weights, *d.inner_xs}
    try:
        step = made.loop.steps.inside(frozenset(filter(ops.is_inexact, active)))
        if not step.carry and not step.ys:
            return None
        return made.reverse(step, step.ys).body
    except REFUSALS:
        return None  # JAX cannot differentiate the step by all of these at once


def _norms(made: Bodies, graph: Graph) -> Body | None:
    """The loop for the cotangents of norms; None if there is none."""
    try:
        found = made.norms(graph, [*filter(ops.is_inexact, graph.inputs)], graph.ys)
    except REFUSALS:
        return None  # JAX cannot differentiate the norms by all of their inputs
    return found and found[0]
