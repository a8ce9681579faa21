"""The door of `solve`: what it takes, and what it refuses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from scanrnn._solve.newton import Solved, trajectory
from scanrnn._solve.problem import Problem, linearized, not_for_all_steps
from scanrnn.executors import associative
from scanrnn.machines import machine_of
from scanrnn.planner import trace
from scanrnn.planner.ir import ops
from scanrnn.planner.trace import inline


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
      init: the initial carry, a pytree of floating-point or complex arrays. A step of
        complex numbers must have a complex derivative: no conjugate, modulus or real
        part of the carry.
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
      TypeError: as `scanrnn.scan` does, or if the carry has integers, booleans or keys.
      ValueError: as `scanrnn.scan` does; if T is 0; if a step's derivative by its carry
        does not consist of blocks of at most 8 numbers; if it has side effects, or keys
        that draw other random numbers for all steps at once; if `guess` does not have
        the carry's structure and shapes; if `iterations` is not one
        integer or `tolerance` not one number, or one of them is less than 0.

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
    _check_limits(iterations, tolerance)
    traced = trace(f, init, xs, length)
    if not all(map(ops.is_inexact, traced.graph.carry)):
        types = ", ".join(v.aval.str_short() for v in traced.graph.carry)
        raise TypeError(
            "solve: the carry must be of floating-point or complex arrays, got "
            f"{types}; keep counters and keys in xs, or use scanrnn.scan"
        )
    graph, more = inline(traced.graph)
    if why := not_for_all_steps(graph):
        raise ValueError(f"solve: {why}; use scanrnn.scan")
    weights = dict(zip(graph.weights, (*traced.weights, *more), strict=True))
    values = OrderedDict(weights | dict(zip(graph.xs, traced.xs, strict=True)))
    scans = associative.rules(machine_of(traced.init)).scans
    problem = Problem(graph, traced.length, *linearized(graph), scans)
    first = _guessed(guess, init, traced)
    if traced.length == 0:
        raise ValueError("solve: there are no steps (length is 0); use scanrnn.scan")
    h, told = trajectory(problem, iterations, tolerance)(values, traced.init, first)
    ys = problem.at_all_steps(graph.ys, values, traced.init, h)
    carry, ys = traced.out_tree.unflatten([*(a[-1] for a in h), *ys])
    return carry, ys, told


def _check_limits(iterations, tolerance) -> None:
    """Check how many iterations there may be, and how large a residual."""
    if not (tolerance is None or _is_positive(tolerance, np.integer, np.floating)):
        raise ValueError(f"solve: tolerance={tolerance!r}, want a number >= 0, or None")
    if not _is_positive(iterations, np.integer):
        raise ValueError(f"solve: iterations={iterations!r}, want an int of 0 or more")


def _is_positive(value, *kinds) -> bool:
    """Whether a value is one number of these kinds, and not below zero if known."""
    if not isinstance(value, int | float | np.number | jax.Array):
        return False
    dtype = jnp.result_type(value)
    if jnp.shape(value) or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        return False
    return isinstance(value, Tracer) or bool(value >= 0)


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
