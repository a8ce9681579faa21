"""The `scan` executor: `lax.scan` over the step as traced. It is the tests' oracle."""

from __future__ import annotations

from jax import lax

from scanrnn.executors._xla import rules as rules
from scanrnn.executors.run.names import named
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.emit import plain
from scanrnn.planner.ir.graph import Env, Values, needed
from scanrnn.planner.motion.over_time import checkpointed, keep_inputs
from scanrnn.planner.options import UNCHANGED
from scanrnn.planner.plan import Plan

NAME = UNCHANGED


def refuse(plan: Plan) -> str | None:
    """None: `lax.scan` runs every plan."""
    del plan
    return None


def run(plan: Plan, weights: list, init: list, xs: list, differentiated=False):
    """Run the step unchanged. Returns the final carry and the ys, flat."""
    del differentiated
    graph = plan.source
    constants, arrays = named(graph.weights, weights), named(graph.xs, xs)
    body = plain(graph, plan.length, plan.reverse, plan.unroll)
    return lower(body, constants, init, arrays)


def lower(body: Body, constants: Values, carry: list, arrays: Values) -> Results:
    """Run a body by a `lax.scan` that JAX may differentiate, without buffer reuse."""
    graph, rows = body.graph, body.rows
    constants = {v: constants[v] for v in graph.weights}
    xs = [rows.all(arrays, v) for v in graph.xs]
    # `lax.scan` takes no symbolic length; it finds it in the shapes of xs.
    symbolic = not isinstance(rows.length, int)
    xs = xs if xs or not symbolic else [lax.iota("int32", rows.length)]

    def step(carry, x):
        x = x[: len(graph.xs)]
        row = dict(zip((*graph.carry, *graph.xs), (*carry, *x), strict=True))
        env = Env(graph.eqns, constants | row)
        env.run(needed(graph.eqns, graph.outs))  # with all side effects
        outs = env.read_all(graph.outs)
        n = len(graph.carry_out)
        return outs[:n], outs[n:]

    if body.keeps_inputs:
        step = checkpointed(step, keep_inputs)
    length = None if xs else rows.length
    return lax.scan(step, list(carry), xs, length, rows.reverse, body.unroll)
