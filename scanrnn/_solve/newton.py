"""Newton's method on all steps at once; what it leaves is computed step by step."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scanrnn._solve.problem import Problem
from scanrnn.planner.ir.graph import Env

# A residual of at most this many machine epsilons counts as rounding. The second
# number is for half precision, whose epsilons are large.
_UNITS, _HALF_UNITS = 32, 1


class Solved(NamedTuple):
    """How `solve` reached its result.

    Attributes:
      iterations: the number of Newton iterations, an int32 scalar.
      steps: the number of steps, counted from the first, that the iterations brought
        within the tolerance, an int32 scalar. The other steps were computed one by one.
    """

    iterations: jax.Array
    steps: jax.Array


def trajectory(problem: Problem, iterations: int, tolerance: float | None):
    """A function from values, init and a guess to the carries and a `Solved`."""

    @jax.custom_jvp
    def solved(values, init, first):
        return _iterated(problem, values, init, first, iterations, tolerance)

    @solved.defjvp
    def _(primals, tangents):
        values, init, _ = primals
        h, told = solved(*primals)
        of = functools.partial(problem.residuals, h=h)
        _, moved = jax.jvp(of, (values, init), tangents[:2])
        still: Any = np.zeros((), jax.dtypes.float0)
        change = problem.change(values, moved, init, h)
        return (h, told), (change, Solved(still, still))

    return solved


def _iterated(problem, values, init, first, most, tolerance):
    """Iterate, then compute the steps that are not within the tolerance one by one."""

    def found(h, residuals):
        """The number of steps, from the first on, that are within the tolerance."""
        good = jnp.ones(problem.length, bool)
        for a, r in zip(h, residuals, strict=True):
            unit = _rounding(a.dtype) if tolerance is None else tolerance
            # Beside an infinite carry every residual would be small.
            near = jnp.isfinite(r) & (jnp.abs(r) <= unit * (1 + jnp.abs(a)))
            good &= near.reshape(problem.length, -1).all(1)
        first = jnp.where(good.all(), problem.length, jnp.argmin(good))
        return first.astype("int32")

    def again(state):
        k, h, residuals, _ = state
        change = problem.change(values, residuals, init, h)
        moved = [a + d for a, d in zip(h, change, strict=True)]
        h = [jnp.where(jnp.isfinite(b), b, a) for a, b in zip(h, moved, strict=True)]
        residuals = problem.residuals(values, init, h)
        return k + 1, h, residuals, found(h, residuals)

    def goes_on(state):
        return (state[0] < most) & (state[-1] < problem.length)

    residuals = problem.residuals(values, init, first)
    start = jnp.int32(0), list(first), residuals, found(first, residuals)
    k, h, _, steps = lax.while_loop(goes_on, again, start)
    return _finished(problem, values, init, h, steps), Solved(k, steps)


def _rounding(dtype) -> float:
    """The largest residual that is only rounding, relative to `1 + |h|`."""
    kind = jnp.finfo(dtype)
    return float(kind.eps) * (_HALF_UNITS if kind.bits < 32 else _UNITS)


def _finished(problem, values, init, h, steps) -> list:
    """The carries after each step; those from `steps` on are computed one by one."""
    graph = problem.graph
    fixed = {v: a for v, a in values.items() if v in graph.weights}

    def step(state):
        t, carry, h = state
        arrays = fixed | {v: values[v][t] for v in graph.xs}
        arrays |= dict(zip(graph.carry, carry, strict=True))
        carry = Env(graph.eqns, arrays).read_all(graph.carry_out)
        return t + 1, carry, [a.at[t].set(c) for a, c in zip(h, carry, strict=True)]

    at = jnp.maximum(steps - 1, 0)
    carry = [jnp.where(steps > 0, a[at], i) for a, i in zip(h, init, strict=True)]
    state = steps, carry, list(h)
    return lax.while_loop(lambda s: s[0] < problem.length, step, state)[2]
