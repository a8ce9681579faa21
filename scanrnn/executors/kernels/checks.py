"""Check, when a plan is made, whether a body can be a kernel."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from scanrnn.executors.kernels import kernel
from scanrnn.executors.run.names import named
from scanrnn.planner.bodies import Body
from scanrnn.planner.emit import REVERSE
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import inside, struct
from scanrnn.planner.plan import Plan


def refusal(
    plan: Plan,
    platform: str,
    device: str,
    checks: Iterable[Callable[[Body], str | None]],
) -> str | None:
    """Why the loops of a plan cannot be kernels of a device, or None.

    On a CPU, Pallas's interpreter runs the kernels of a platform. Each of the checks
    says why a body cannot be a kernel, or None. If devices hold parts of its arrays,
    XLA runs the loops, and a step that is asked for by name needs to be no kernel.
    """
    if plan.unplanned is not None:
        return plan.unplanned
    if plan.machine.platform not in (platform, "cpu"):
        return f"its kernels are for {device}, not for {plan.machine.kind}"
    if not plan.defer:
        return "the derivative of its loop is left to JAX"
    if REVERSE not in plan.emitted and any(map(ops.is_inexact, plan.step.carry)):
        return "its reverse loop is known only when it is differentiated"
    if has_divided_arrays(plan):
        asked = plan.options.implementation is not None
        return None if asked else "devices hold parts of its arrays: XLA runs its loops"
    for check in checks:
        for name, body in plan.emitted.items():
            reason = check(body)
            if reason is not None:
                return f"loop {name}: {reason}"
    return None


def has_divided_arrays(plan: Plan) -> bool:
    """Whether, by their types, devices hold parts of the arrays of a planned loop."""
    return any(ops.is_split(ops.aval(v)) for v in plan.loop.graph.inputs)


def unsuitable(body: Body) -> str | None:
    """Why no kernel of any machine can run a body of these types, or None."""
    graph = body.graph
    if not graph.carry:
        return "it has no carry"
    avals = list(map(ops.aval, (*graph.inputs, *graph.outs)))
    sizes = [body.rows.length, *itertools.chain(*(aval.shape for aval in avals))]
    symbolic = [str(size) for size in sizes if not isinstance(size, int)]
    if symbolic:
        return f"a kernel needs sizes that are numbers, and {symbolic[0]} is symbolic"
    if 0 in sizes:
        return "there is an array without elements"
    keys = [a for a in avals if jnp.issubdtype(a.dtype, jax.dtypes.extended)]
    if keys:
        return f"a kernel reads no {keys[0].str_short()}"
    every = (f for e in graph.eqns for f in (e, *inside(e)))
    avals += [ops.aval(v) for e in every for v in e.outvars]
    dtypes = {aval.dtype for aval in avals}
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
        return "a kernel computes no complex numbers"
    return None


def too_large(body: Body) -> str | None:
    """Why a body does not fit into the fast memory of a TPU, or None."""
    wanted, most = kernel.layout(body)[0].bytes, kernel.memory(body)
    if wanted > most:
        return (
            f"weights, carry and rows of a step take {wanted / 2**20:.0f} MB, and of "
            f"fast memory there are {most / 2**20:.0f} MB"
        )
    return None


def unlowered(body: Body) -> str | None:
    """Why Mosaic does not lower the kernel of a body, by its own error, or None.

    If a mesh of several devices is set, XLA runs the loops, and Mosaic is not asked.
    """
    if jax.sharding.get_abstract_mesh().size > 1:
        return None
    graph, rows = body.graph, body.rows
    names = rows.sources(graph.xs)
    structs = (struct(v) if v in rows.shifts else struct(v, rows.length) for v in names)
    run = functools.partial(kernel.run, body, interpret=False)
    given = named(graph.weights, map(struct, graph.weights))
    carry, rows_of = list(map(struct, graph.carry)), named(names, structs)
    try:
        traced = jax.jit(run).trace(given, carry, rows_of)
        traced.lower(lowering_platforms=("tpu",))
    # Whatever the error is, this plan must not run.
    except Exception as error:
        line = str(error.__cause__ or error).strip().splitlines()[0]
        return f"Mosaic does not lower it: {line}"
    return None
