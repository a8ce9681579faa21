"""Linear functions with a transpose of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.executors.run.ruled import Build, Ruled
from scanrnn.machines import Machine
from scanrnn.planner.derivative.tangent import pushed


def linear(
    forward: Callable, transposed: Build, machine: Machine, types: tuple = ()
) -> Callable:
    """A function of trees `(fixed, moving)`, linear in `moving`, with its transpose.

    It returns a list, and JAX may differentiate it in both trees. Its transpose by
    machine, `(fixed, cts) -> cts of moving`, returns a list of leaves.
    """

    def run(fixed, moving) -> list:
        leaves, tree = jax.tree.flatten((fixed, moving))
        at_fixed = jax.tree.structure(fixed)
        n = at_fixed.num_leaves

        def function(*args):
            return forward(*tree.unflatten(args))

        def jvp(primals, tangents):
            terms = []
            if any(t is not None for t in tangents[n:]):
                pairs = zip(tangents[n:], primals[n:], strict=True)
                full = [jnp.zeros_like(m) if t is None else t for t, m in pairs]
                terms.append(run(*tree.unflatten([*primals[:n], *full])))
            if any(t is not None for t in tangents[:n]):
                of_fixed = [*tangents[:n], *[None] * len(tangents[n:])]
                terms.append(pushed(function, primals, of_fixed)[1])
            sums = [functools.reduce(lax.add, ts) for ts in zip(*terms, strict=True)]
            return run(*tree.unflatten(primals)), sums

        def pull(machine, alone):
            f = transposed(machine, alone)
            return lambda fixed, cts: f(at_fixed.unflatten(fixed), cts)

        rules = Ruled(function, lambda *_: function, machine, jvp, pull, n, types=types)
        return rules(*leaves)

    return run
