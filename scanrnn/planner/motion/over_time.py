"""Run a per-step function for all steps at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import DropVar

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.gemm import gemm
from scanrnn.planner.ir.graph import Env, Graph, free, needed, variables

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


def _multiplies(eqn, timed: Collection) -> bool:
    """Whether an equation is `[B, ..., K] @ [K, N]`, with a left side for each step."""
    if eqn.primitive.name not in ops.PRODUCTS or len(variables(eqn.invars)) != 2:
        return False
    (contract, batch) = eqn.params["dimension_numbers"]
    data, weights = map(ops.aval, eqn.invars)
    last = batch == ((), ()) and tuple(contract[0]) == (data.ndim - 1,)
    split = ops.is_split(data) or ops.is_split(weights)
    shapes = last and data.ndim > 1 and weights.ndim == 2 and not split
    return shapes and [v in timed for v in eqn.invars] == [True, False]


def _product(eqn, data, weights):
    """A product for all steps at once, by `gemm`, which knows its own transpose."""
    ((_, theirs), batch) = eqn.params["dimension_numbers"]
    numbers = (((data.ndim - 1,), theirs), batch)
    return gemm({**eqn.params, "dimension_numbers": numbers}, data, weights)


def _at_all_steps(graph: Graph, wanted: Sequence, length) -> Callable:
    """A function of xs and weights: products by `_product`, all else by `vmap`.

    To trace everything under `vmap`, and to look for products then, would take twice as
    long.
    """
    eqns, timed = needed(graph.eqns, wanted), {*graph.xs}
    products = set()
    for eqn in eqns:
        if not timed.isdisjoint(variables(eqn.invars)):
            products |= {eqn} if _multiplies(eqn, timed) else set()
            timed.update(eqn.outvars)

    def run(xs, weights):
        env = Env((), zip((*graph.xs, *graph.weights), (*xs, *weights), strict=True))
        for multiplies, group in itertools.groupby(eqns, products.__contains__):
            if not multiplies:
                env.update(_mapped(list(group), env, timed, length))
                continue
            for eqn in group:
                env[eqn.outvars[0]] = _product(eqn, *map(env.read, eqn.invars))
        moves = [not ops.is_literal(a) and a in timed for a in wanted]
        found = zip(map(env.read, wanted), moves, strict=True)
        return [a if m else _repeated(a, length) for a, m in found]

    return run


def _mapped(eqns: Sequence, env: Env, timed: Collection, length) -> Iterable:
    """The results of equations, by variable, for all steps at once."""
    names = sorted(free(eqns), key=lambda v: v not in timed)
    made = [v for e in eqns for v in e.outvars if not isinstance(v, DropVar)]
    n = sum(v in timed for v in names)
    values = [env[v] for v in names]

    def run(*groups):
        here = Env(eqns, zip(names, itertools.chain(*groups), strict=True))
        here.run(eqns)
        return [here[v] for v in made]

    axes = [0 if v in timed else None for v in made]
    run = jax.vmap(run, (0, None), axes, axis_size=length)
    return zip(made, run(values[:n], values[n:]), strict=True)


def _repeated(value, length):
    return jax.vmap(lambda _, a: a, (0, None), axis_size=length)((), value)


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
    found = iter(())
    if missing:
        run = _at_all_steps(graph, missing, length)
        if policy is not None and not _keeps_only_inputs(graph):
            run = checkpointed(run, policy)
        found = iter(run(xs, weights))
    return [values[a] if a in graph.xs else next(found) for a in graph.ys]
