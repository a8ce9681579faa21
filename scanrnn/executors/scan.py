"""The `scan` executor: `lax.scan` over the step as traced. It is the tests' oracle."""

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
    """None: `lax.scan` runs every plan."""
    del plan
    return None


def run(plan: Plan, weights: list, init: list, xs: list):
    """Run the step unchanged. Returns the final carry and the ys, flat."""
    return scan_graph(plan.source, weights, init, xs, plan)


def lower(body: Body, constants: Mapping, carry: list, known: Mapping):
    """Refuse: this executor runs no bodies.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(f"implementation={NAME!r} runs steps as they were traced")


def scan_graph(
    graph: Graph,
    weights: list,
    carry: list,
    xs: list,
    loop: Plan | Loop,
    wrapped: Callable = lambda step: step,
):
    """Run a graph under `lax.scan`, with the length, direction and unroll of `loop`.

    `wrapped` is applied to the step function, for example `jax.checkpoint`.
    """
    constants = dict(zip(graph.weights, weights, strict=True))

    # `lax.scan` takes no symbolic length; it finds it in the shapes of xs.
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
