"""Run a per-step function for all steps at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
from jax import lax

from scanrnn.planner import ops
from scanrnn.planner.gemm import gemm
from scanrnn.planner.graph import Env, eval_eqn, opened, variables


def over_time(step: Callable, in_axes, length) -> Callable:
    """`vmap` over time, with steps and batch as one axis in every contraction.

    XLA for CPU transposes a whole `[T, B, N]` operand to contract over T and B
    together, as the gradient of `x @ W` does; over one axis of T * B it need not.
    With several devices a batch that is split among them must stay an axis.
    """
    batched = jax.vmap(step, in_axes, axis_size=length)

    def run(*args):
        leaves, tree = jax.tree.flatten(args)
        if not ops.on_one_device(map(jax.typeof, leaves)):
            return batched(*args)
        closed, shapes = jax.make_jaxpr(
            lambda *leaves: batched(*tree.unflatten(leaves)), return_shape=True
        )(*leaves)
        jaxpr, consts = opened(closed)
        known = zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *leaves), strict=True)
        env = Env(jaxpr.eqns, known)
        for eqn in jaxpr.eqns:
            values = [env.read(a) for a in eqn.invars]
            outs = _flat_dot(eqn, values) if _flattens(eqn) else eval_eqn(eqn, values)
            env.update(zip(eqn.outvars, outs, strict=True))
        outs = [env.read(a) for a in jaxpr.outvars]
        return jax.tree.structure(shapes).unflatten(outs)

    return run


def _flattens(eqn) -> bool:
    """Whether an equation is `[T, ..., K] @ [K, N]`."""
    if eqn.primitive.name != "dot_general" or len(variables(eqn.invars)) != 2:
        return False
    (contract, batch) = eqn.params["dimension_numbers"]
    data, weights = (a.aval for a in eqn.invars)
    if batch != ((), ()) or tuple(contract[0]) != (data.ndim - 1,):
        return False
    return (
        data.ndim > 2
        and weights.ndim == 2
        and all(isinstance(d, int) for d in data.shape)
    )


def _flat_dot(eqn, values):
    data, weights = values
    lead = data.shape[:-1]
    flat = lax.reshape(data, (math.prod(lead), data.shape[-1]))
    (contract, batch) = eqn.params["dimension_numbers"]
    params = eqn.params | {"dimension_numbers": (((1,), contract[1]), batch)}
    out = gemm(params, flat, weights)
    return [lax.reshape(out, (*lead, out.shape[-1]))]
