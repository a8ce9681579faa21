"""The reverse loop: the body that a gradient runs, and the work around it.

It runs from the last step to the first, and stacks the cotangents of what entered at
each step. It may reuse the buffers of the residuals: once the reverse loop has passed a
step, nothing reads the residuals of that step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.extend.core import Var

from scanrnn.planner.around import around
from scanrnn.planner.bodies import Body, Target, made, rows_of, unrolled
from scanrnn.planner.graph import Graph
from scanrnn.planner.loops import Loop
from scanrnn.planner.rows import pair_up
from scanrnn.planner.steps import Step


class Reverse(NamedTuple):
    """What a gradient runs for a loop.

    Attributes:
      before: the work before the reverse loop, for all steps at once.
      body: the reverse loop.
      after: the work after it on its rows, for all steps at once.
      consts: constants of the body, by variable; they are its last weights.
    """

    before: Graph
    body: Body
    after: Graph
    consts: Mapping[Var, Any]


def reverse(loop: Loop, step: Step, given: tuple[Var, ...], target: Target) -> Reverse:
    """Make the reverse loop: the transpose of the loop of tangents.

    Args:
      loop: the forward loop.
      step: the step of its tangents, inside the loop.
      given: the ys of `step` whose cotangents are given.
      target: what the body is made for.
    """
    recorded = loop.recording.rows
    whole = loop.steps.reverse(step, given)
    before, graph, after = around(
        whole.graph, loop.precomputes, loop.rules.precomputes_sums
    )
    memory, over = {}, {}
    if target == Target(loop.rules):
        memory = pair_up(graph.ys, loop.dead)
        over = _overwritten(loop, graph, given) if loop.in_place else {}
    rows = rows_of(
        loop,
        target,
        reverse=not loop.reverse,
        places=recorded.places,
        shifts=recorded.shifts,
        over=over,
        memory=memory,
    )
    body = made(graph, rows, unrolled(loop, target, reverse=True), target)
    body = dataclasses.replace(body, machine=loop.machine)
    return Reverse(before, body, after, whole.consts)


def _overwritten(loop, graph, given) -> dict[int, Var]:
    """For some stacked outputs, by index, the array whose buffer they reuse.

    They reuse residuals, else incoming cotangents. A shift may still be read from such
    an array: it reads a row that is not yet written.
    """
    rules, rows = loop.derivative, loop.recording.rows
    needed = {*loop.graph.ys, *rules.read_outside}
    needed |= {*loop.graph.xs} - loop.spare
    needed |= {*rows.sources(needed)}
    free = [v for v in loop.read_inside if v not in needed and v not in rows.shifts]
    return pair_up(graph.ys, [*free, *(rules.cotangents[v] for v in given)])
