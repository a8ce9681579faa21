"""Run the loop of tangents, and its transpose.

A gradient runs the transpose: the planner's reverse loop.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax.numpy as jnp

from scanrnn.executors import scan
from scanrnn.executors._executor import Executor, on, target_of
from scanrnn.executors.run.contributions import contributions
from scanrnn.executors.run.linear import linear
from scanrnn.executors.run.names import is_divided, named, types_of
from scanrnn.executors.run.products import copy_transposed
from scanrnn.machines import Machine
from scanrnn.planner.derivative.steps import Step
from scanrnn.planner.emit import Bodies, plain
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Values
from scanrnn.planner.loops import Loop
from scanrnn.planner.motion.over_time import stage_over_time
from scanrnn.planner.passes.wide_sums import rounded, zero_sum


def tangent_loop(
    loop: Loop,
    executor: Executor,
    carry: list,
    constants: Values,
    arrays: Values,
    tangents: Values,
):
    """The tangents of the final carry and of the ys; None for one that is always zero.

    Carry, constants and arrays are those of the loop, as for `Executor.lower`. The
    tangents are those of inputs that are not zero.
    """
    graph, derivative = loop.graph, loop.derivative
    entering = contributions(loop, executor, constants, arrays, tangents)
    inner = {*graph.carry, *derivative.inner_weights, *derivative.inner_xs}
    tangents = {v: t for v, t in tangents.items() if v in inner} | entering
    step = loop.steps.inside(frozenset(tangents))
    if not step.carry and not step.ys:
        return [None] * len(graph.carry), [None] * len(graph.ys)
    missing = [p for p in zip(graph.carry, carry, strict=True) if p[0] not in tangents]
    zeros = {v: jnp.zeros_like(c) for v, c in missing}
    names = (derivative.tangents[v] for v in step.active)
    active = named(names, (tangents.get(v, zeros.get(v)) for v in step.active))
    transposed = {
        name: copy_transposed(constants[v]) for v, name in derivative.transposed.items()
    }
    arrays = {v: arrays[v] for v in loop.read_inside}
    fixed = OrderedDict({**constants, **transposed}), OrderedDict(arrays)
    run = functools.partial(_forward, loop, step)
    if not is_divided((fixed, active)):
        transposed = functools.partial(_reversed, loop, executor, step)
        types = types_of(step.graph, loop.length)
        run = linear(run, transposed, loop.machine, types)
    outs = run(fixed, active)
    n = len(step.carry)
    d_final = named(step.carry, outs[:n])
    d_ys = cast(Mapping[Any, Any], named(step.ys, outs[n:]))
    return [d_final.get(v) for v in graph.carry], [d_ys.get(v) for v in graph.ys]


def _forward(loop: Loop, step: Step, fixed, active) -> list:
    """The tangents, by a loop that JAX may differentiate again."""
    (constants, arrays), graph, derivative = fixed, step.graph, loop.derivative
    streams = loop.recording.rows.whole(derivative.rows(derivative.read_inside), arrays)
    values = {**constants, **step.consts, **streams, **active}
    keeps = loop.residuals != "everything"
    body = plain(graph, loop.length, loop.reverse, loop.unroll, keeps_inputs=keeps)
    d_final, d_ys = scan.lower(body, values, [values[v] for v in graph.carry], values)
    return [*d_final, *d_ys]


def _reversed(
    loop: Loop, executor: Executor, step: Step, machine: Machine, alone: bool
) -> Callable[..., list]:
    """A function that gives the cotangents of the inputs from those of the outputs."""
    derivative, n = loop.derivative, len(step.carry)
    executor = on(executor, loop, machine, alone)
    bodies = Bodies(loop, target_of(executor, loop, machine, alone))

    def run(fixed, cts: list) -> list:
        constants, arrays = fixed
        given = named(step.ys, cts[n:])
        given = {v: ct for v, ct in given.items() if ct is not None}
        made = bodies.reverse(step, tuple(given))
        constants = {**constants, **made.consts}
        arrays = {**arrays, **{derivative.cotangents[v]: ct for v, ct in given.items()}}
        whole = {**constants, **loop.recording.rows.whole(made.before.xs, arrays)}
        early = stage_over_time(made.before, whole, loop.length)
        arrays |= named(made.before.ys, early)
        summed = [ops.aval(v) for v in step.active if v in derivative.inner_weights]
        start = [
            ops.zeros(ops.aval(v)) if ct is None else ct
            for v, ct in zip(step.carry, cts[:n], strict=True)
        ]
        start += map(zero_sum, summed)
        final, ys = executor.lower(made.body, constants, start, arrays)
        rows = named(made.rows, ys)
        passed = [v for v in made.after.xs if v not in rows]
        rows |= loop.recording.rows.whole(passed, arrays)
        ys = stage_over_time(made.after, rows, loop.length)
        return [*final[:n], *map(rounded, final[n:], summed), *ys]

    return run
