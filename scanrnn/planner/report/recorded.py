"""Which operations of a loop cannot be recorded in a CUDA graph.

If a trip of a loop is recorded as one CUDA graph, the host launches it once, however
many kernels it has. An operation that cannot be recorded ends the graph, and the host
launches the operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jax.extend.core import JaxprEqn, jaxprs_in_params

from scanrnn.planner.bodies import Body
from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import variables
from scanrnn.planner.rules import Rules


def unrecorded(eqns: Iterable[JaxprEqn], rules: Rules) -> Iterator[str]:
    """The names of operations that cannot be recorded, also of those inside others.

    A loop, or a branch, that cannot be recorded is named itself, and not what is in it.
    """
    for eqn in eqns:
        name = eqn.primitive.name
        if name in rules.unrecorded and _as_it_is(eqn):
            yield name
        elif name != "pallas_call":  # a kernel, whatever is in it
            for jaxpr in jaxprs_in_params(eqn.params):
                yield from unrecorded(jaxpr.eqns, rules)


def _as_it_is(eqn: JaxprEqn) -> bool:
    """Whether a loop or branch stays one when compiled; True for other operations."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        # XLA replaces a loop of one trip by its body; 0 unrolls a loop altogether.
        length, unroll = ops.product([params["length"]]), params["unroll"]
        return unroll > 0 and length // unroll > 1
    if name == "cond":
        # A choice by platform is made when the program is lowered.
        return not compat.is_by_platform(eqn)
    return True


def copies_rows(body: Body) -> bool:
    """Whether a trip copies rows as they are, each by a copy that is not recorded.

    XLA does so if a trip has one step, for a row that a product reads, and for a carry
    that is stacked. Other rows are read and written by kernels that compute.
    """
    graph = body.graph
    if body.rows.trip_steps > 1:
        return False
    products = filter(ops.is_heavy, graph.eqns)
    read = {v for e in products for v in variables(e.invars)}
    stacked = {*variables(graph.ys)}
    return not (read.isdisjoint(graph.xs) and stacked.isdisjoint(graph.carry))
