"""The executor of last resort: `lax.scan` over the step as traced. The oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jax import lax

from scanrnn.executors._xla import rules as rules
from scanrnn.planner.bodies import Body
from scanrnn.planner.graph import Env, Graph
from scanrnn.planner.loops import Loop
from scanrnn.planner.plan import Plan

NAME = "scan"


def refuse(plan: Plan) -> str | None:
    """Why this plan does not run here: `lax.scan` runs everything."""
    del plan
    return None


def run(plan: Plan, weights: list, init: list, xs: list):
    """Run the step unchanged. Returns the final carry and the ys, flat."""
    return scan_graph(plan.source, weights, init, xs, plan)


def lower(body: Body, constants: Mapping, carry: list, known: Mapping):
    """A body is a loop of a plan, which this executor does not run."""
    raise NotImplementedError(f"implementation={NAME!r} runs steps as they were traced")


def scan_graph(
    graph: Graph,
    weights: list,
    carry: list,
    xs: list,
    loop: Plan | Loop,
    wrapped: Callable = lambda step: step,
):
    """A graph under `lax.scan`, as long, in the direction and unrolled as `loop` is.

    `wrapped` makes of a step what is run, as `jax.checkpoint` does.
    """
    constants = dict(zip(graph.weights, weights, strict=True))

    # A symbolic length cannot be given, only found in the shapes of xs.
    symbolic = not isinstance(loop.length, int)
    xs = xs if xs or not symbolic else [lax.iota("int32", loop.length)]

    def body(carry, x):
        x = x[: len(graph.xs)]
        known = dict(zip((*graph.carry, *graph.xs), (*carry, *x), strict=True))
        outs = Env(graph.eqns, constants | known).read_all(graph.outs)
        n = len(graph.carry_out)
        return outs[:n], outs[n:]

    length = None if xs else loop.length
    return lax.scan(wrapped(body), list(carry), xs, length, loop.reverse, loop.unroll)
