"""The loop of a plan, with its own derivative rule.

It is a `custom_jvp` around the loop that an executor makes. The tangent is a second
loop in which only carry tangents flow; what weights contribute enters it as stacked
inputs computed outside for all steps at once. Reverse mode is the transpose of that
program: a reverse loop of state cotangents, then one contraction per weight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Var

from scanrnn.executors._names import named, remembering_inputs, split, values
from scanrnn.executors._staged import staged
from scanrnn.executors._tangent import tangent_loop
from scanrnn.executors._together import together
from scanrnn.executors.scan import scan_graph
from scanrnn.planner.layout import PLAIN
from scanrnn.planner.loops import Loop


def run_loop(loop: Loop, lower: Callable, weights: list, carry: list, xs: list):
    """Run the loop. Returns the final carry and the stacked ys."""

    def forward(weights, carry, xs):
        final, ys = _forward(loop, lower, weights, carry, xs)
        outs = together([*final, *ys], [*weights, *carry, *xs])
        return outs[: len(final)], outs[len(final) :]

    run = jax.custom_jvp(forward)
    run.defjvp(functools.partial(_rule, loop, lower), symbolic_zeros=True)
    return run(weights, carry, xs)


def _forward(loop, lower, weights, carry, xs):
    graph, sizes = loop.graph, (len(weights), len(weights) + len(carry))

    def plain(*args):
        groups = args[: sizes[0]], args[sizes[0] : sizes[1]], args[sizes[1] :]
        final, ys = scan_graph(
            graph, list(groups[0]), list(groups[1]), list(groups[2]), loop
        )
        return [*final, *ys]

    def build(machine, alone):
        same = machine == loop.machine
        rows = loop.rows if alone and same else loop.plain_rows(machine)
        layout = loop.layout if same else PLAIN

        def run(*args):
            constants = named(graph.weights, args[: sizes[0]])
            known = named(graph.xs, args[sizes[1] :])
            carry = list(args[sizes[0] : sizes[1]])
            choices = dict(machine=machine, layout=layout, unroll=loop.unroll)
            final, ys = lower(graph, rows, constants, carry, known, **choices)
            return [*final, *ys]

        return run

    args = [*weights, *carry, *xs]
    # Types that speak of a mesh belong to the program that JAX makes.
    outs = plain(*args) if split(args) else staged(build, loop.machine, plain, args)
    return outs[: len(carry)], outs[len(carry) :]


def _rule(loop, lower, primals, tangents):
    """Primal loop with residuals, contributions from outside, tangent loop."""
    graph, recording = loop.graph, loop.recording
    weights, carry, xs = primals
    d_weights, d_carry, d_xs = (
        _moving(names, ts)
        for names, ts in zip(
            (graph.weights, graph.carry, graph.xs), tangents, strict=True
        )
    )
    final, stacked = run_loop(recording.loop, lower, weights, carry, xs)

    def program(weights, carry, xs, final, stacked, *tangents):
        constants = named(graph.weights, weights)
        known = named(graph.xs, xs) | recording.known(carry, final, stacked)
        names = (d_weights, d_carry, d_xs)
        tangents = [named(n, ts) for n, ts in zip(names, tangents, strict=True)]
        return tangent_loop(loop, lower, carry, constants, known, *tangents)

    # Rematerialised as a whole, so that what is kept is exactly its inputs.
    tangents = map(values, (d_weights, d_carry, d_xs))
    program = remembering_inputs(program, loop.residuals)
    d_out = program(weights, carry, xs, final, stacked, *tangents)
    out = final, stacked[: len(graph.ys)]
    d_final, d_ys = (
        [_symbolic(t, y) for t, y in zip(ts, ys, strict=True)]
        for ts, ys in zip(d_out, out, strict=True)
    )
    return out, (d_final, d_ys)


def _moving(names, tangents) -> dict[Var, Any]:
    """The tangents that are not structurally zero."""
    return {
        v: t
        for v, t in zip(names, tangents, strict=True)
        if not isinstance(t, SymbolicZero)
    }


def _symbolic(tangent, primal):
    if tangent is not None:
        return tangent
    return SymbolicZero(jax.typeof(primal).to_tangent_aval())
