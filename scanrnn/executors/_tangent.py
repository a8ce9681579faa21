"""The loop in which tangents flow, and its transpose.

The transpose is what a gradient runs: a loop from the last step to the first that
stacks the cotangents of what entered. It may write them over what the forward loop
kept for it, which nothing reads any more once a step has been passed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax.numpy as jnp
from jax.extend.core import Var

from scanrnn.executors._batch import stage_over_time
from scanrnn.executors._contributions import contributions
from scanrnn.executors._names import named, remembering_inputs, split
from scanrnn.executors._ruled import linear
from scanrnn.executors.scan import scan_graph
from scanrnn.machines import Machine
from scanrnn.planner import ops
from scanrnn.planner.gemm import turn
from scanrnn.planner.halves import rounded, zero_sum
from scanrnn.planner.lean import lean
from scanrnn.planner.loops import Loop
from scanrnn.planner.rows import pair_up
from scanrnn.planner.steps import Step, inside_step, reverse_step


def tangent_loop(
    loop: Loop,
    lower: Callable,
    carry: list,
    constants: Mapping[Var, Any],
    known: Mapping[Var, Any],
    tangents: Mapping[Var, Any],
):
    """Tangents of the final carry and the ys; None where structurally zero.

    `known` is arrays of all steps, and edges, by name; `tangents` those of inputs that
    are not zero.
    """
    graph, rules = loop.graph, loop.derivative
    entering = contributions(loop, constants, known, tangents)
    inner = {*graph.carry, *rules.inner_weights, *rules.inner_xs}
    tangents = {v: t for v, t in tangents.items() if v in inner} | entering
    step = inside_step(rules, frozenset(tangents))
    if not step.carry and not step.ys:
        return [None] * len(graph.carry), [None] * len(graph.ys)
    zeros = {v: jnp.zeros_like(c) for v, c in zip(graph.carry, carry, strict=True)}
    names = (rules.tangents[v] for v in step.moving)
    moving = named(names, (tangents.get(v, zeros.get(v)) for v in step.moving))
    turned = {name: turn(constants[v]) for v, name in rules.turned.items()}
    dead = {v: known[v] for v in loop.dead}
    known = dead | loop.recording.rows.of(rules.rows(rules.read_inside), known)
    fixed = OrderedDict({**constants, **turned}), OrderedDict(known)
    run = functools.partial(_forward, loop, step)
    if not split((fixed, moving)):
        transposed = functools.partial(_reversed, loop, lower, step, tuple(known))
        run = linear(run, transposed, loop.machine)
    outs = run(fixed, moving)
    n = len(step.carry)
    d_final = named(step.carry, outs[:n])
    d_ys = cast(Mapping[Any, Any], named(step.ys, outs[n:]))
    return [d_final.get(v) for v in graph.carry], [d_ys.get(v) for v in graph.ys]


def _forward(loop: Loop, step: Step, fixed, moving) -> list:
    """The tangents, by a loop that JAX may differentiate again."""
    (constants, arrays), graph, rules = fixed, step.graph, loop.derivative
    streams = loop.recording.rows.whole(rules.rows(rules.read_inside), arrays)
    values = {**constants, **step.consts, **streams, **moving}
    weights, carry, xs = (
        [values[v] for v in group] for group in (graph.weights, graph.carry, graph.xs)
    )
    remember = functools.partial(remembering_inputs, residuals=loop.residuals)
    d_final, d_ys = scan_graph(graph, weights, carry, xs, loop, remember)
    return [*d_final, *d_ys]


def _reversed(
    loop: Loop,
    lower: Callable,
    step: Step,
    arrays: tuple[Var, ...],
    machine: Machine,
    alone: bool,
) -> Callable[..., list]:
    """Cotangents of all that moves, given those of the outputs or None."""
    rules, n = loop.derivative, len(step.carry)

    def run(fixed, cts: list) -> list:
        constants, known = fixed
        given = named(step.ys, cts[n:])
        given = {v: ct for v, ct in given.items() if ct is not None}
        reverse = reverse_step(rules, step, tuple(given))
        before, graph, after = lean(reverse.graph, loop.is_lean)
        kept, constants = loop.recording.rows, {**constants, **reverse.consts}
        known = {**known, **{rules.cotangents[v]: ct for v, ct in given.items()}}
        whole = {**constants, **kept.whole(before.xs, known)}
        known |= named(before.ys, stage_over_time(before, whole, loop.length))
        over, memory = {}, {}
        if alone and machine == loop.machine:
            memory = pair_up(graph.ys, loop.dead)
            if loop.in_place:
                over = _overwritten(loop, graph, arrays, tuple(given))
        rows = dataclasses.replace(
            loop.plain_rows(machine, alone),
            reverse=not loop.reverse,
            places=kept.places,
            shifts=kept.shifts,
            over=over,
            memory=memory,
        )
        summed = [ops.aval(v) for v in step.moving if v in rules.inner_weights]
        start = [
            ops.zeros(ops.aval(v)) if ct is None else ct
            for v, ct in zip(step.carry, cts[:n], strict=True)
        ]
        start += map(zero_sum, summed)
        unroll = loop.unrolled(machine, reverse=True)
        choices = dict(machine=machine, unroll=unroll)
        final, made = lower(graph, rows, constants, start, known, **choices)
        made = stage_over_time(after, named(graph.ys, made), loop.length)
        return [*final[:n], *map(rounded, final[n:], summed), *made]

    return run


def _overwritten(loop, step, arrays, given) -> dict[int, Var]:
    """For what is stacked, the arrays that it is written over.

    Over what was kept, else over cotangents that came in. A shift may be read from one
    of them: of a row that is not yet written.
    """
    graph, rules, rows = loop.graph, loop.derivative, loop.recording.rows
    needed = {*graph.ys, *rules.read_outside, *(set(graph.xs) - loop.spare)}
    needed |= {*rows.sources(v for v in needed)}
    free = [v for v in arrays if v not in needed and v not in rows.shifts]
    return pair_up(step.ys, [*free, *(rules.cotangents[v] for v in given)])
