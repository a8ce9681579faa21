"""Run a per-step function for all steps at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.functions import reread
from scanrnn.planner.ir.gemm import gemm
from scanrnn.planner.ir.graph import Env, Graph, variables

# A `select_n` reads which case was chosen.
_ALWAYS_LINEAR = ops.LINEAR - {"select_n"}


def checkpointed(f, policy):
    """Keep for the transpose of `f` what a policy of `jax.checkpoint` allows."""
    return jax.checkpoint(f, prevent_cse=False, policy=policy)


def keep_inputs(*_, **__) -> bool:
    """A policy for `jax.checkpoint`: keep only the inputs."""
    return False


def keep_products(primitive, *args, **params) -> bool:
    """A policy for `jax.checkpoint`: keep inputs and results of contractions.

    `jax.checkpoint` cannot keep complex results: it rounds what it keeps by a
    `reduce_precision`, which refuses them. They are computed again.
    """
    del params
    if any(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in args):
        return False
    return primitive.name in ops.HEAVY or primitive.name == ops.PRODUCT


def _product(eqn, values) -> list | None:
    """Evaluate a product with weights by `gemm`, which knows its own transpose."""
    return [gemm(eqn.params, *values)] if _multiplies(eqn) else None


def _multiplies(eqn) -> bool:
    """Whether an equation is `[T, ..., K] @ [K, N]`."""
    if eqn.primitive.name != "dot_general" or len(variables(eqn.invars)) != 2:
        return False
    (contract, batch) = eqn.params["dimension_numbers"]
    data, weights = map(ops.aval, eqn.invars)
    last = batch == ((), ()) and tuple(contract[0]) == (data.ndim - 1,)
    return last and data.ndim > 2 and weights.ndim == 2


def _keeps_only_inputs(graph: Graph) -> bool:
    """Whether the derivative of a stage reads no values but its inputs.

    A policy then changes nothing, and it takes as long to trace as the stage itself.
    """
    eqns = [e for e in graph.eqns if e.primitive.name not in _ALWAYS_LINEAR]
    read = itertools.chain.from_iterable(variables(e.invars) for e in eqns)
    products = all(e.primitive.name == "dot_general" for e in eqns)
    return products and {*read} <= {*graph.inputs}


def stage_over_time(graph: Graph, values: Mapping, length, policy=None) -> list:
    """The outputs of a stage for all steps at once, given its inputs by variable.

    Outputs that are inputs of the stage are returned as they are. `policy` is a policy
    of `jax.checkpoint` for what is kept for the transpose; None leaves that to JAX.
    """
    weights, xs = ([values[v] for v in group] for group in (graph.weights, graph.xs))
    missing = [a for a in graph.ys if a not in graph.xs]

    def step(xs, weights):
        given = zip((*graph.weights, *graph.xs), (*weights, *xs), strict=True)
        return Env(graph.eqns, given).read_all(missing)

    found = iter(())
    if missing:
        batched = jax.vmap(step, (0, None), axis_size=length)
        # To trace the stage and evaluate it again takes as long as the stage itself.
        if any(e.primitive.name in ops.PRODUCTS for e in graph.eqns):
            batched = reread(batched, _product)
        if policy is not None and not _keeps_only_inputs(graph):
            batched = checkpointed(batched, policy)
        found = iter(batched(xs, weights))
    return [values[a] if a in graph.xs else next(found) for a in graph.ys]
