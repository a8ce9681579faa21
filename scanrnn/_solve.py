"""Nonlinear recurrences in parallel over time, by Newton's method."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Var

from scanrnn.executors import associative
from scanrnn.executors.parallel.scans import before
from scanrnn.planner import trace
from scanrnn.planner.emit import plain
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Graph, Values, struct, variables_like
from scanrnn.planner.ir.retrace import graph_of
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.parallel import affine
from scanrnn.planner.report.in_parallel import DRAWS
from scanrnn.planner.trace import inline

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


def solve(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    guess: Any = None,
    iterations: int = 16,
    tolerance: float | None = None,
) -> tuple[Any, Any, Solved]:
    r"""Compute what `jax.lax.scan` gives, all steps at once, by Newton's method.

    .. math:: \delta_t = J_t \, \delta_{t-1} + f(h_{t-1}, x_t) - h_t, \qquad
        h_t \leftarrow h_t + \delta_t

    where :math:`J_t` is the derivative of a step by its carry, and the residual of step
    t is :math:`f(h_{t-1}, x_t) - h_t`. An iteration is an affine scan. After k
    iterations the first k steps are exact, whatever the guess was. Most recurrences
    that forget need few iterations. The iterations stop when the residual of every
    step is within the tolerance, or when there were as many as allowed. The steps from
    the first one that is not within the tolerance are then computed one by one. So the
    result is that of the loop, and it is never NaN where that of the loop is not.

    `solve` can pay on a GPU or a TPU, if T is large and iterations are few. It seldom
    pays on a CPU, where one affine scan takes about as long as the loop. `print(plan)`
    says where it applies. Measure it. The gradient is exact: an affine scan in reverse.

    Args:
      f: one time step, as for `scanrnn.scan`. Numbers of the carry may be coupled in
        blocks of up to 8. A recurrent matrix couples more, so such cells are refused.
      init: the initial carry, a pytree of floating-point arrays.
      xs: inputs, a pytree of arrays `[T, ...]`, or None.
      length: T; needed only if `xs` is None. It must be at least 1.
      guess: a first guess of the carries after each step, `[T, ...]`; None for `init`
        at every step.
      iterations: the largest number of iterations, an int of at least 0.
      tolerance: the largest residual of a step, relative to `1 + |h|`; None for a
        residual that is only rounding.

    Returns:
      `(carry, ys, solved)`: the final carry, the outputs stacked to `[T, ...]`, and a
      `Solved` that says how it was solved.

    Raises:
      TypeError: as `scanrnn.scan` does, or if the carry is not all floating-point.
      ValueError: as `scanrnn.scan` does; if T is 0; if a step's derivative by its carry
        does not consist of blocks of at most 8 numbers; if it has side effects, or keys
        that draw other random numbers for all steps at once; if `guess` does not have
        the carry's structure and shapes; if `iterations` or `tolerance` is not >= 0.

    Example:
      >>> import jax.numpy as jnp, scanrnn
      >>> u = jnp.array([0.5, -0.3])
      >>> def step(h, x):
      ...     h = jnp.tanh(u * h + x)
      ...     return h, h
      >>> xs = jnp.linspace(-1, 1, 40).reshape(20, 2)
      >>> h, ys, solved = scanrnn.solve(step, jnp.zeros(2), xs)
      >>> bool(jnp.allclose(ys, scanrnn.scan(step, jnp.zeros(2), xs)[1], atol=1e-5))
      True

    Reference:
      Lim et al., "Parallelizing non-linear sequential models over the sequence length",
      2023, arXiv:2309.12252; Gonzalez et al., "Towards scalable and stable
      parallelization of nonlinear RNNs", 2024, arXiv:2407.19115.
    """
    if isinstance(tolerance, int | float | np.generic) and not tolerance >= 0:
        raise ValueError(f"solve: tolerance={tolerance!r}, want a number >= 0, or None")
    whole = isinstance(iterations, int | np.integer) and iterations >= 0
    if not whole and not isinstance(iterations, jax.Array):
        raise ValueError(f"solve: iterations={iterations!r}, want an int of 0 or more")
    traced = trace(f, init, xs, length)
    if not all(map(ops.is_inexact, traced.graph.carry)):
        types = ", ".join(v.aval.str_short() for v in traced.graph.carry)
        raise TypeError(
            f"solve: the carry must be of floating-point arrays, got {types}; keep "
            "counters and keys in xs, or use scanrnn.scan"
        )
    graph, more = inline(traced.graph)
    if why := _not_for_all_steps(graph):
        raise ValueError(f"solve: {why}; use scanrnn.scan")
    weights = dict(zip(graph.weights, (*traced.weights, *more), strict=True))
    values = OrderedDict(weights | dict(zip(graph.xs, traced.xs, strict=True)))
    problem = _Problem(graph, traced.length, *_linear(graph))
    first = _guessed(guess, init, traced)
    if traced.length == 0:
        raise ValueError("solve: there are no steps (length is 0); use scanrnn.scan")
    h, told = _trajectory(problem, iterations, tolerance)(values, traced.init, first)
    ys = problem.at_all_steps(graph.ys, values, traced.init, h)
    carry, ys = traced.out_tree.unflatten([*(a[-1] for a in h), *ys])
    return carry, ys, told


def _not_for_all_steps(graph: Graph) -> str | None:
    """Why a step cannot be computed for all steps at once, or None."""
    if any(eqn.effects for eqn in graph.eqns):
        return "the step has side effects"
    timed = (eqn for eqn in graph.eqns if graph.depends[eqn])
    return DRAWS if ops.draws_apart(timed) else None


class _Problem(NamedTuple):
    """A recurrence, and the linear recurrence of the changes of its carry.

    Attributes:
      graph: one step of the recurrence.
      length: the number of steps.
      linear: one step of the changes. It reads the carry before the step and the
        residual of the step.
      consts: constants of `linear`, by variable.
      read: the variables of the residuals in `linear`.
    """

    graph: Graph
    length: int
    linear: Graph
    consts: Values
    read: tuple[Var, ...]

    def at_all_steps(self, wanted, values, init, h) -> list:
        """Values of all steps, given the carry after each step."""
        arrays = {**values, **self._before(init, h)}
        return associative.over_time(self.graph, wanted, arrays, self.length)

    def residuals(self, values, init, h) -> list:
        """The carry that each step computes, minus the guessed carry after it."""
        made = self.at_all_steps(self.graph.carry_out, values, init, h)
        return [lax.sub(a, b) for a, b in zip(made, h, strict=True)]

    def change(self, values, residuals, init, h) -> list:
        """The changes of all carries that cancel the residuals, to first order."""
        arrays = {**values, **self.consts, **self._before(init, h)}
        arrays |= dict(zip(self.read, residuals, strict=True))
        start = [jnp.zeros_like(a) for a in init]
        constants = {v: arrays[v] for v in self.linear.weights}
        body = plain(self.linear, self.length)
        return associative.lower(body, constants, start, arrays)[1]

    def _before(self, init, h) -> dict:
        pairs = zip(self.graph.carry, init, h, strict=True)
        return {v: before(b, a, Rows(self.length)) for v, a, b in pairs}


def _linear(graph: Graph) -> tuple[Graph, Values, tuple[Var, ...]]:
    """One step of the changes, its constants, and the variables of the residuals."""
    changes, read = (variables_like(map(struct, graph.carry)) for _ in range(2))

    def run(arrays):
        def step(*carry):
            of_step = dict(zip(graph.carry, carry, strict=True))
            return Env(graph.eqns, {**arrays, **of_step}).read_all(graph.carry_out)

        at, moving = ([arrays[v] for v in group] for group in (graph.carry, changes))
        _, after = jax.jvp(step, at, moving)
        added = [lax.add(a, arrays[v]) for a, v in zip(after, read, strict=True)]
        return [*added, *added]

    xs = (*graph.carry, *graph.xs, *read)
    linear, consts = graph_of(run, graph.weights, changes, xs)
    for group in affine.groups(linear):
        if not group.parallel:
            raise ValueError(
                "solve: the derivative of a step by its carry must consist of blocks "
                f"of at most 8 numbers: {group.why}; use scanrnn.scan"
            )
    return linear, consts, tuple(read)


def _trajectory(problem: _Problem, iterations: int, tolerance: float | None):
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


def _guessed(guess, init, traced) -> list:
    """The guess as a list of arrays; the initial carry at all steps if it is None."""
    n = traced.length
    if guess is None:
        return [jnp.broadcast_to(a, (n, *a.shape)) for a in traced.init]
    leaves, tree = jax.tree.flatten(guess)
    shapes = [jnp.shape(a) for a in leaves]
    wanted = [(n, *a.shape) for a in traced.init]
    if tree != jax.tree.structure(init) or shapes != wanted:
        carries = f"a carry for each step, of shapes {wanted}"
        raise ValueError(f"solve: guess must be {carries}; got {shapes}")
    return [jnp.asarray(a, b.dtype) for a, b in zip(leaves, traced.init, strict=True)]
