"""The reverse loop: the body that a gradient runs, and what is done around it.

It goes from the last step to the first and stacks the cotangents of what entered at
each step. It may write them over what the forward loop kept for it, which nothing reads
any more once a step has been passed.
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
from scanrnn.planner.steps import Step, reverse_step


class Reverse(NamedTuple):
    """What a gradient runs of a loop.

    Attributes:
      before: what is made for all steps at once, before the loop.
      body: the loop.
      after: what is made of its rows, for all steps at once.
      consts: values of the last weights of the body, by name.
    """

    before: Graph
    body: Body
    after: Graph
    consts: Mapping[Var, Any]


def reverse(loop: Loop, step: Step, given: tuple[Var, ...], target: Target) -> Reverse:
    """The transpose of a step of tangents, as a loop.

    Args:
      loop: the forward loop.
      step: of its tangents, inside the loop.
      given: those of the step's ys whose cotangents are given.
      target: what it is made for.
    """
    rules, recorded = loop.derivative, loop.recording.rows
    whole = reverse_step(rules, step, given)
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
    """For what is stacked, the arrays that it is written over.

    Over what was kept, else over cotangents that came in. A shift may be read from one
    of them: of a row that is not yet written.
    """
    rules, rows = loop.derivative, loop.recording.rows
    needed = {*loop.graph.ys, *rules.read_outside}
    needed |= {*loop.graph.xs} - loop.spare
    needed |= {*rows.sources(needed)}
    free = [v for v in loop.read_inside if v not in needed and v not in rows.shifts]
    return pair_up(graph.ys, [*free, *(rules.cotangents[v] for v in given)])
