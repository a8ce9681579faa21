"""The loop of a plan, with its own derivative rule.

It is a `custom_jvp` around `lax.scan`. The tangent is a second scan in which
only carry tangents flow; what weights contribute enters it as stacked inputs
computed outside for all steps at once. Reverse mode is the transpose of that
program: a reverse loop of state cotangents, then one contraction per weight.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Var

from scanrnn.executors._inplace import Late, piece
from scanrnn.executors._recurrence import Loop, named, values, varying
from scanrnn.executors._residuals import Residuals
from scanrnn.executors._tangent import tangent_loop
from scanrnn.executors._together import together
from scanrnn.planner.layout import LaidEnv


def run_loop(loop: Loop, weights: list, carry: list, xs: list):
    """Run the loop. Returns the final carry and the stacked ys."""
    if not loop.defer:
        return _forward(loop, weights, carry, xs)

    def forward(weights, carry, xs):
        final, ys = _forward(loop, weights, carry, xs)
        outs = together([*final, *ys], [*weights, *carry, *xs])
        return outs[: len(final)], outs[len(final) :]

    run = jax.custom_jvp(forward)
    run.defjvp(functools.partial(_rule, loop), symbolic_zeros=True)
    return run(weights, carry, xs)


def _forward(loop, weights, carry, xs):
    graph, n = loop.graph, len(loop.graph.carry_out)
    constants, streams = named(graph.weights, weights), named(graph.xs, xs)
    over = {} if varying([*weights, *carry, *xs]) else loop.overwritten
    layout = loop.layout.reading(over.values())
    late = Late(loop.length, loop.reverse)
    arrays = [streams.pop(v) for v in over.values()]
    pieced = {v: streams.pop(v) for v in layout.streams if v in streams}
    places = [graph.ys.index(v) for v in over]
    apart = [i for i in range(len(graph.ys)) if i not in places]

    def body(state, x):
        (carry, arrays, rows), (t, x) = state, x
        arrays = late.write(arrays, rows, t)
        known = constants | named(graph.carry, carry) | named(streams, x)
        read = functools.partial(piece, pieced | named(over.values(), arrays), t)
        outs = LaidEnv(graph, layout, known, read).read_all(graph.outs)
        ys = outs[n:]
        rows = [ys[i] for i in places]
        return (outs[:n], arrays, rows), [ys[i] for i in apart]

    steps = lax.iota("int32", loop.length) if layout.streams else None
    state = list(carry), arrays, late.start(arrays)
    (carry, arrays, rows), ys = loop.scan(body, state, (steps, values(streams)))
    stacked = dict(zip(places, late.finish(arrays, rows), strict=True))
    stacked |= dict(zip(apart, ys, strict=True))
    return carry, [stacked[i] for i in range(len(graph.ys))]


def _rule(loop, primals, tangents):
    """Primal loop with residuals, contributions from outside, tangent loop."""
    graph = loop.graph
    weights, carry, xs = primals
    d_weights, d_carry, d_xs = (
        _moving(names, ts)
        for names, ts in zip(
            (graph.weights, graph.carry, graph.xs), tangents, strict=True
        )
    )
    residuals = Residuals(loop)
    final, stacked = run_loop(residuals.loop, weights, carry, xs)

    def program(weights, carry, xs, final, stacked, *moving):
        constants = named(graph.weights, weights)
        arrays, edges = residuals.streams(carry, final, stacked)
        known = constants, arrays | named(graph.xs, xs), edges
        names = (d_weights, d_carry, d_xs)
        moving = [named(n, ts) for n, ts in zip(names, moving, strict=True)]
        return tangent_loop(loop, residuals.kept, carry, known, *moving)

    # Rematerialised as a whole, so that what is kept is exactly its inputs.
    moving = map(values, (d_weights, d_carry, d_xs))
    d_out = loop.rematerialised(program)(weights, carry, xs, final, stacked, *moving)
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
