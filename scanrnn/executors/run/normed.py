"""Compute norms of whole sequences, and their transpose piece by piece."""

from __future__ import annotations

import functools

import jax

from scanrnn.executors._executor import Executor, on, target_of
from scanrnn.executors.run.linear import linear
from scanrnn.executors.run.names import named, types_of
from scanrnn.executors.run.ruled import Ruled
from scanrnn.planner.emit import Bodies
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.rows import folded
from scanrnn.planner.loops import Loop
from scanrnn.planner.norms import of_active, pulled
from scanrnn.planner.passes.wide_sums import rounded, zero_sum


def normed(
    graph: Graph, loop: Loop, executor: Executor, inputs, differentiated: bool = False
) -> list:
    """The outputs of a graph of norms for all steps, given its weights and time inputs.

    `loop` is the loop that follows the norms; it says how many steps make a piece.
    `differentiated` says that JAX will differentiate this call.
    """
    function = functools.partial(of_active, graph, loop.length, {}, graph.inputs)
    rule = functools.partial(_rule, graph, loop, executor)
    types = types_of(graph, loop.length) if differentiated else ()
    run = Ruled(function, lambda *_: function, loop.machine, rule, types=types)
    return run(*inputs)


def _rule(graph, loop, executor, primals, tangents):
    active = [v for v, t in zip(graph.inputs, tangents, strict=True) if t is not None]
    tangents = named(active, (t for t in tangents if t is not None))

    def forward(values, tangents):
        outs = functools.partial(of_active, graph, loop.length, values, active)
        return jax.jvp(outs, [values[v] for v in active], [*tangents.values()])[1]

    def transposed(machine, alone):
        here = on(executor, loop, machine, alone)
        bodies = Bodies(loop, target_of(here, loop, machine, alone))

        def run(values, cts):
            given = {
                v: ct for v, ct in zip(graph.ys, cts, strict=True) if ct is not None
            }
            made = bodies.norms(graph, active, given)
            if made is None:
                return pulled(graph, loop.length, active, values, given)
            where = graph, loop, here, active
            return _in_pieces(made, *where, values, given)

        return run

    run = linear(forward, transposed, loop.machine)
    outs = run(named(graph.inputs, primals), tangents)
    return normed(graph, loop, executor, primals), outs


def _in_pieces(made, graph, loop, executor, active, values, given) -> list:
    """The same as `pulled`, one piece of steps after the other."""
    (body, consts), values = made, {**values, **given}
    lead = body.rows.length, loop.norm_steps
    parts = (folded(lead, values[v]) for v in (*graph.xs, *given))
    arrays = named(body.graph.xs, parts)
    values = {**values, **consts}
    constants = {v: values[v] for v in body.graph.weights}
    types = [ops.aval(v) for v in active if v in graph.weights]
    sums, found = executor.lower(body, constants, [*map(zero_sum, types)], arrays)
    wholes = (folded((loop.length,), ct, 2) for ct in found)
    return [*map(rounded, sums, types), *wholes]
