"""Run the loop of a plan, with its own derivative rule.

The tangent is a second loop, in which only tangents of the carry flow. The
contributions of weights enter it as stacked inputs, computed outside for all steps at
once. Reverse mode is the transpose of that program: a reverse loop of the cotangents of
the carry, and then one contraction for each weight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from scanrnn.executors import scan
from scanrnn.executors._executor import Executor, on, target_of
from scanrnn.executors.run.names import is_divided, named, remembering_inputs, types_of
from scanrnn.executors.run.ruled import Ruled
from scanrnn.executors.run.tangent import tangent_loop
from scanrnn.planner.emit import Bodies, plain
from scanrnn.planner.loops import Loop
from scanrnn.planner.motion.over_time import stage_over_time


def run_loop(
    loop: Loop, executor: Executor, weights, carry, xs, differentiated: bool = False
):
    """Run the loop. Returns the final carry and the stacked ys.

    `differentiated` says that JAX will differentiate this call. The loop for values is
    then traced only if it runs after all.
    """
    args = [*weights, *carry, *xs]
    body = plain(loop.graph, loop.length, loop.reverse, loop.unroll)
    function = _runner(loop, scan, body)
    # With arrays that are split over a mesh, JAX makes the program.
    apart = is_divided(args)
    build = functools.partial(_build, loop, executor)
    build = (lambda *_: function) if apart else build
    types = types_of(loop.graph, loop.length) if differentiated and not apart else ()
    rule = functools.partial(_rule, loop, executor)
    run = Ruled(function, build, loop.machine, rule, loop=True, types=types)
    outs = run(*args)
    return outs[: len(carry)], outs[len(carry) :]


def _build(loop, executor, machine, alone) -> Callable[..., list]:
    executor = on(executor, loop, machine, alone)
    bodies = Bodies(loop, target_of(executor, loop, machine, alone))
    return _runner(loop, executor, bodies.forward())


def _runner(loop, executor, body) -> Callable[..., list]:
    """A function of flat values that runs a body."""

    def run(*args):
        weights, carry, xs = loop.graph.groups(args)
        constants, arrays = named(loop.graph.weights, weights), named(loop.graph.xs, xs)
        final, ys = executor.lower(body, constants, carry, arrays)
        return [*final, *ys]

    return run


def _rule(loop, executor, primals, tangents):
    """The derivative rule: the loop that records, then the loop of tangents."""
    graph, recording = loop.graph, loop.recording
    weights, carry, xs = graph.groups(primals)
    moving = [v for v, t in zip(graph.inputs, tangents, strict=True) if t is not None]
    final, stacked = run_loop(recording.loop, executor, weights, carry, xs)

    def program(weights, carry, xs, final, stacked, tangents):
        constants = named(graph.weights, weights)
        arrays = named(graph.xs, xs) | recording.by_variable(carry, final, stacked)
        arrays |= _recomputed(loop, constants, arrays)
        tangents = named(moving, tangents)
        return tangent_loop(loop, executor, carry, constants, arrays, tangents)

    # Under one `jax.checkpoint`, so that exactly its inputs are kept.
    program = remembering_inputs(program, loop.residuals)
    tangents = [t for t in tangents if t is not None]
    d_final, d_ys = program(weights, carry, xs, final, stacked, tangents)
    return [*final, *stacked[: len(graph.ys)]], [*d_final, *d_ys]


def _recomputed(loop, constants, arrays) -> dict:
    """Recompute, for all steps at once, what was not stacked."""
    graph, rows = loop.recomputed, loop.recording.rows
    values = {**constants, **rows.whole(graph.xs, arrays)}
    return named(graph.ys, stage_over_time(graph, values, loop.length))
