"""Compute norms of whole sequences, and their transpose piece by piece.

In the transpose, new cotangents reuse the buffers of the incoming ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from scanrnn.executors._batch import stage_over_time
from scanrnn.executors._executor import Executor
from scanrnn.executors._names import named
from scanrnn.executors._ruled import Ruled, linear
from scanrnn.planner import ops
from scanrnn.planner.bodies import Body
from scanrnn.planner.graph import Graph, graph_of, struct, variables_like
from scanrnn.planner.loops import Loop
from scanrnn.planner.rows import Rows, folded, pair_up
from scanrnn.planner.wide_sums import in_wide_sums, rounded, wide_type, zero_sum


def normed(graph: Graph, loop: Loop, executor: Executor, inputs: Sequence) -> list:
    """The outputs of a graph of norms for all steps, given its weights and time inputs.

    `loop` is the loop that follows the norms; it says how many steps make a piece.
    """
    function = functools.partial(_of, graph, loop.length, {}, graph.inputs)
    rule = functools.partial(_rule, graph, loop, executor)
    return Ruled(function, lambda *_: function, loop.machine, rule)(*inputs)


def _rule(graph, loop, executor, primals, tangents):
    moving = [v for v, t in zip(graph.inputs, tangents, strict=True) if t is not None]
    tangents = named(moving, (t for t in tangents if t is not None))

    def forward(known, tangents):
        outs = functools.partial(_of, graph, loop.length, known, moving)
        return jax.jvp(outs, [known[v] for v in moving], [*tangents.values()])[1]

    def transposed(machine, alone):
        def run(known, cts):
            given = {
                v: ct for v, ct in zip(graph.ys, cts, strict=True) if ct is not None
            }
            # Pieces suit the plan's rules on one device; else JAX's transpose is used.
            if alone and executor.rules(machine) == loop.rules:
                return _in_pieces(graph, loop, executor, moving, known, given)
            return _pulled(graph, loop.length, moving, known, given)

        return run

    run = linear(forward, transposed, loop.machine)
    outs = run(named(graph.inputs, primals), tangents)
    return normed(graph, loop, executor, primals), outs


def _of(graph, length, known, moving: Sequence[Var], *values) -> list:
    """The outputs as a function of the inputs `moving`; the others are known."""
    return stage_over_time(graph, known | named(moving, values), length)


def _pulled(graph, length, moving, known, given) -> list:
    """The cotangents of some inputs, given those of some outputs."""

    def asked(*values):
        outs = named(graph.ys, _of(graph, length, known, moving, *values))
        return [outs[v] for v in given]

    _, pull = jax.vjp(asked, *(known[v] for v in moving))
    return list(in_wide_sums(pull, graph)(list(given.values())))


def _in_pieces(graph, loop, executor, moving, known, given) -> list:
    """The same as `_pulled`, one piece of steps after the other."""
    size, summed = loop.piece, [v for v in moving if v in graph.weights]
    pieces, n = loop.length // size, len(summed)
    cut = {v: known[v] for v in graph.xs} | given
    names = variables_like(struct(v, size) for v in cut)
    names = dict(zip(cut, names, strict=True))
    sums = variables_like(wide_type(struct(v)) for v in summed)

    def step(known):
        values = {v: known[names.get(v, v)] for v in graph.inputs}
        cts = {v: known[names[v]] for v in given}
        found = _pulled(graph, size, moving, values, cts)
        before = [known[v] for v in sums]
        more = map(rounded, found[:n], before)
        return [*map(jnp.add, before, more), *found[n:]]

    body, consts = graph_of(step, graph.weights, sums, list(names.values()))
    cts = [names[v] for v in given]
    over = pair_up(body.ys, cts) if loop.in_place else {}
    arrays = {names[v]: folded((pieces, size), a) for v, a in cut.items()}
    constants = {v: known[v] for v in graph.weights} | consts
    start = [zero_sum(ops.aval(v)) for v in summed]
    rows = Rows(pieces, over=over)
    found, made = executor.lower(Body(body, rows), constants, start, arrays)
    found = [*map(rounded, found, map(ops.aval, summed))]
    return [*found, *(folded((loop.length,), ct, 2) for ct in made)]
