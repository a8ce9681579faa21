"""Nonlinear recurrences in parallel over time, by Newton's method."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Var

from scanrnn.executors import associative
from scanrnn.planner import Body, affine, ops, trace
from scanrnn.planner.graph import Env, Graph, graph_of, struct, variables_like
from scanrnn.planner.rows import Rows
from scanrnn.planner.trace import inline

# Residuals are rounding up to so many units of the last place.
_UNITS = 32


class Solved(NamedTuple):
    """How a recurrence was solved.

    Attributes:
      iterations: how many there were.
      steps: how many steps, from the first on, they found within the tolerance; the
        others were then computed one by one.
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
    r"""What `jax.lax.scan` gives, with all steps at once, by Newton's method.

    .. math:: \delta_t = J_t \, \delta_{t-1} + f(h_{t-1}, x_t) - h_t, \qquad
        h_t \leftarrow h_t + \delta_t

    with :math:`J_t` the derivative of a step by its carry. An iteration is an affine
    scan. After k of them the first k steps are exact, whatever the guess was; most
    recurrences that forget take few. It stops when every step's own residual is within
    the tolerance. Steps that are not by then are computed one by one, so that the
    result is that of the loop, and never NaN where that is not.

    An iteration costs what an affine scan does: it pays on a GPU or a TPU, where T is
    large and iterations are few, and never on a CPU. Measure it.

    The gradient is exact, and is one affine scan in reverse.

    Args:
      f: one time step, as for `scanrnn.scan`. Numbers of the carry may be coupled in
        blocks of up to 8; of a cell with a recurrent matrix they are not.
      init: the initial carry, of floating-point arrays.
      xs: inputs, a pytree of arrays `[T, ...]`, or None.
      length: T; needed only if `xs` is None.
      guess: carries after each step, `[T, ...]`; None for `init` at every step.
      iterations: the most there may be.
      tolerance: of the residual of a step, relative to `1 + |h|`; None for rounding.

    Returns:
      `(carry, ys, solved)`: the final carry, the outputs stacked to `[T, ...]`, and how
      it was solved.

    Raises:
      TypeError: as `scanrnn.scan` does, or if the carry is not all floating-point.
      ValueError: as `scanrnn.scan` does; if too many numbers of the carry are coupled;
        if a `guess` does not have the carry's structure and shapes.

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
    traced = trace(f, init, xs, length)
    if not all(map(ops.is_inexact, traced.graph.carry)):
        types = ", ".join(v.aval.str_short() for v in traced.graph.carry)
        raise TypeError(
            f"solve: the carry must be of floating-point arrays, got {types}; keep "
            "counters and keys in xs, or use scanrnn.scan"
        )
    graph, more = inline(traced.graph)
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


class _Problem(NamedTuple):
    """A recurrence, and the one that is linear in changes of its carry.

    Attributes:
      graph: a step.
      length: how many there are.
      linear: a step of changes; it reads carries, and residuals, of each step.
      consts: values of the last of its weights, by name.
      read: the names of residuals in it.
    """

    graph: Graph
    length: int
    linear: Graph
    consts: Mapping[Var, Any]
    read: tuple[Var, ...]

    def at_all_steps(self, wanted, values, init, h) -> list:
        """What steps make, given the carries after each."""
        known = {**values, **self._before(init, h)}
        return associative.over_time(self.graph, wanted, known, self.length)

    def residuals(self, values, init, h) -> list:
        """What each step makes of the carry before it, less the carry after it."""
        made = self.at_all_steps(self.graph.carry_out, values, init, h)
        return [lax.sub(a, b) for a, b in zip(made, h, strict=True)]

    def change(self, values, residuals, init, h) -> list:
        """The changes of all carries that make up for residuals, to first order."""
        known = {**values, **self.consts, **self._before(init, h)}
        known |= dict(zip(self.read, residuals, strict=True))
        start = [jnp.zeros_like(a) for a in init]
        body = Body(self.linear, Rows(self.length))
        constants = {v: known[v] for v in self.linear.weights}
        return associative.lower(body, constants, start, known)[1]

    def _before(self, init, h) -> dict:
        first = [jnp.expand_dims(a, 0) for a in init]
        pairs = zip(self.graph.carry, first, h, strict=True)
        return {v: lax.concatenate([a, b[:-1]], 0) for v, a, b in pairs}


def _linear(graph: Graph) -> tuple[Graph, Mapping[Var, Any], tuple[Var, ...]]:
    """A step of changes of the carry, its constants, and what it adds to them."""
    changes, read = (variables_like(map(struct, graph.carry)) for _ in range(2))

    def run(known):
        def step(*carry):
            of_step = dict(zip(graph.carry, carry, strict=True))
            return Env(graph.eqns, {**known, **of_step}).read_all(graph.carry_out)

        at, moving = ([known[v] for v in group] for group in (graph.carry, changes))
        _, after = jax.jvp(step, at, moving)
        added = [lax.add(a, known[v]) for a, v in zip(after, read, strict=True)]
        return [*added, *added]

    xs = (*graph.carry, *graph.xs, *read)
    linear, consts = graph_of(run, graph.weights, changes, xs)
    for group in affine.groups(linear):
        if not group.parallel:
            raise ValueError(
                f"solve: the derivative of a step by its carry is not one of small "
                f"blocks: {group.why}; use scanrnn.scan"
            )
    return linear, consts, tuple(read)


def _trajectory(problem: _Problem, iterations: int, tolerance: float | None):
    """The carries after each step, of values, init and a guess; and how they came."""

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
    """Iterations, and after them steps one by one, from the first that is not found."""

    def found(h, residuals):
        """How many steps, from the first on, are within the tolerance."""
        good = jnp.ones(problem.length, bool)
        for a, r in zip(h, residuals, strict=True):
            unit = _UNITS * jnp.finfo(a.dtype).eps if tolerance is None else tolerance
            near = jnp.abs(r) <= unit * (1 + jnp.abs(a))
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


def _finished(problem, values, init, h, steps) -> list:
    """The carries after each step, those from `steps` on computed one by one."""
    graph = problem.graph
    fixed = {v: a for v, a in values.items() if v in graph.weights}

    def step(state):
        t, carry, h = state
        known = fixed | {v: values[v][t] for v in graph.xs}
        known |= dict(zip(graph.carry, carry, strict=True))
        carry = Env(graph.eqns, known).read_all(graph.carry_out)
        return t + 1, carry, [a.at[t].set(c) for a, c in zip(h, carry, strict=True)]

    at = jnp.maximum(steps - 1, 0)
    carry = [jnp.where(steps > 0, a[at], i) for a, i in zip(h, init, strict=True)]
    state = steps, carry, list(h)
    return lax.while_loop(lambda s: s[0] < problem.length, step, state)[2]


def _guessed(guess, init, traced) -> list:
    """The guess as a list of arrays; if there is none, the initial carry throughout."""
    n = traced.length
    if guess is None:
        return [jnp.broadcast_to(a, (n, *a.shape)) for a in traced.init]
    leaves, tree = jax.tree.flatten(guess)
    shapes = [jnp.shape(a) for a in leaves]
    wanted = [(n, *a.shape) for a in traced.init]
    if tree != jax.tree.structure(init) or shapes != wanted:
        raise ValueError(
            f"solve: guess must be a carry for each step, of shapes {wanted}; got "
            f"{shapes}"
        )
    return [jnp.asarray(a, b.dtype) for a, b in zip(leaves, traced.init, strict=True)]
