"""The contributions of weights and time inputs to the tangents of a loop."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from typing import Any

import jax
from jax.extend.core import Var

from scanrnn.executors._executor import Executor, on
from scanrnn.executors.run.linear import linear
from scanrnn.executors.run.names import is_divided, named, remembering_inputs, types_of
from scanrnn.executors.run.ordering import late
from scanrnn.machines import Machine
from scanrnn.planner.derivative.steps import Step
from scanrnn.planner.ir.graph import Values, struct
from scanrnn.planner.loops import Loop
from scanrnn.planner.motion.over_time import stage_over_time
from scanrnn.planner.passes.wide_sums import in_wide_sums
from scanrnn.planner.rules import Rules


def contributions(
    loop: Loop, executor: Executor, constants: Values, arrays: Values, tangents: Values
) -> dict[Var, Any]:
    """Compute the contributions `E` for all steps at once, by cut.

    Constants and arrays are those of the loop, as for `Executor.lower`. The tangents
    are those of weights and time inputs that are not zero.
    """
    derivative, graph = loop.derivative, loop.graph
    moving = [v for v in (*graph.weights, *graph.xs) if v in tangents]
    if not derivative.cuts or not moving:
        return {}
    step = loop.steps.outside(frozenset(moving))
    arrays = loop.recording.rows.of(derivative.rows(derivative.read_outside), arrays)
    fixed = OrderedDict(constants), OrderedDict(arrays)
    names = (derivative.tangents[v] for v in moving)
    tangents = named(names, (tangents[v] for v in moving))
    forward = functools.partial(_forward, loop, step)
    if is_divided((fixed, tangents)):
        run = remembering_inputs(forward, loop.residuals)
    else:
        names = tuple(tangents)
        transposed = functools.partial(_transposed, loop, executor, step, names)
        types = types_of(step.graph, loop.length)
        run = linear(forward, transposed, loop.machine, types)
    return dict(zip(step.ys, run(fixed, tangents), strict=True))


def _forward(loop: Loop, step: Step, fixed, tangents) -> list:
    """The contributions, for all steps at once."""
    constants, arrays = fixed
    read = loop.derivative.rows(loop.derivative.read_outside)
    streams = loop.recording.rows.whole(read, arrays)
    return _outside(loop, step, {**constants, **streams, **tangents})


def _outside(loop, step, values) -> list:
    return stage_over_time(step.graph, {**values, **step.consts}, loop.length)


def _transposed(loop, executor, step: Step, names, machine: Machine, alone: bool):
    """A function that gives cotangents of weights and time inputs from those of `E`."""
    rules = on(executor, loop, machine, alone).rules(machine)
    return functools.partial(_pulled, loop, step, names, rules)


def _pulled(loop, step, names, rules: Rules, fixed, cts: list) -> list:
    constants, arrays = fixed
    given = {i: ct for i, ct in enumerate(cts) if ct is not None}
    ready = next(iter(given.values()))
    rows, derivative = loop.recording.rows, loop.derivative

    def whole(v):
        parts = rows.of([v], arrays)
        sources = tuple(parts)

        # A rule of `vmap` outlives this trace, so it holds no value of it.
        def make(*values):
            return rows.all(dict(zip(sources, values, strict=True)), v)

        # Otherwise XLA makes the shifted copy before the loop, and keeps it throughout.
        delayed = v in rows.shifts and rules.delays_copies
        if not delayed:
            return make(*parts.values())
        return late(ready, make, *parts.values(), out=struct(v, loop.length))

    streams = {v: whole(v) for v in derivative.rows(derivative.read_outside)}
    ys = tuple(step.graph.ys[i] for i in given)
    step = step._replace(graph=dataclasses.replace(step.graph, ys=ys))
    values = {**constants, **streams}

    def outside(*tangents):
        return _outside(loop, step, values | dict(zip(names, tangents, strict=True)))

    timed = step.graph.xs
    structs = [struct(v, loop.length) if v in timed else struct(v) for v in names]
    pull = jax.linear_transpose(outside, *structs)
    # If there are gains, their sums and the sums of biases share one pass.
    gains = any(e.primitive.name == "mul" for e in step.graph.eqns)
    columns = rules.sums_biases_by_products and not gains
    pull = in_wide_sums(pull, step.graph, columns)
    return list(pull(list(given.values())))
