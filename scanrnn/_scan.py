"""The front door: `scan` and `plan`."""

from __future__ import annotations

import dataclasses
import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from scanrnn._tune import tuned
from scanrnn.executors import EXECUTORS as EXECUTORS
from scanrnn.executors import assign, check_name
from scanrnn.machines import Machine, machine_named, machine_of
from scanrnn.planner import Options, Plan, Traced, make_plan, trace

# One plan per traced step and options: JAX gives the same jaxpr object for the
# same function and shapes, and it lives as long as the function does.
_plans: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    plan: Plan | Options | None = None,
    implementation: str | None = None,
) -> tuple[Any, Any]:
    r"""`jax.lax.scan`, planned: work that does not need the loop leaves it.

    .. math:: c_{t+1}, y_t = f(c_t, x_t), \qquad t = 0, \dots, T - 1

    The signature and the meaning are those of `jax.lax.scan`, for every step
    function and under every transformation. What differs is where the work is
    done: contractions that need no carry run once before the loop, readouts once
    after it, and all weight gradients once after the reverse loop.

    Args:
      f: one time step, `f(carry, x) -> (carry, y)`; it may close over arrays.
      init: the initial carry, a pytree of arrays.
      xs: inputs, a pytree of arrays `[T, ...]`, or None.
      length: T; needed only if `xs` is None.
      reverse: run from the last step to the first.
      unroll: the unroll factor of the loop, or True to unroll it fully.
      _split_transpose: as for `jax.lax.scan`, where that is what runs; a planned
        reverse loop is split already.
      plan: `Options` for the planner, or a `Plan` of this step to use again.
      implementation: None for the best, "planned" for that or an error that
        says why not, "scan" for `jax.lax.scan` itself. "pallas_tpu" makes one kernel
        of each loop, on a TPU; it has never run on one, so it has to be asked for, or
        found right and faster by `scanrnn.plan(..., tune=True)`.

    Returns:
      `(carry, ys)`: the final carry, and the outputs stacked to `[T, ...]`.

    Raises:
      TypeError: if `f` changes its carry's structure, shape or dtype, or an
        argument has the wrong type.
      ValueError: if leading sizes disagree, an option is unknown, `plan` was made
        for other shapes, or `implementation` cannot run this step.

    Example:
      >>> import jax, jax.numpy as jnp, scanrnn
      >>> W, U = jnp.ones((3, 4)), 0.1 * jnp.eye(4)
      >>> def step(h, x):
      ...     h = jnp.tanh(x @ W + h @ U)
      ...     return h, h
      >>> h, ys = scanrnn.scan(step, jnp.zeros((2, 4)), jnp.ones((5, 2, 3)))
      >>> h.shape, ys.shape
      ((2, 4), (5, 2, 4))

    Reference:
      Appleyard, Kocisky, Blunsom, "Optimizing Performance of Recurrent Neural
      Networks on GPUs", https://arxiv.org/abs/1604.01946.
    """
    _check(plan, implementation)
    steps = _unrolled(unroll)
    split = {"_split_transpose": True} if _split_transpose else {}
    unplanned = functools.partial(
        lax.scan, f, init, xs, length, reverse, unroll, **split
    )
    if implementation == "scan" or getattr(jax.config, "jax_disable_jit", False):
        return unplanned()
    traced = trace(f, init, xs, length)
    found = _fitted(traced, plan, bool(reverse), steps, implementation)
    if found.executor == "scan":
        return unplanned()
    carry, ys = found.compiled(traced.weights, traced.init, traced.xs)
    return traced.out_tree.unflatten([*carry, *ys])


def plan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    tune: bool | str = False,
    **options: Any,
) -> Plan:
    """What `scan` will run for these arguments, and why. Only `tune` runs anything.

    Args:
      f: one time step, as for `scan`.
      init: the initial carry; arrays or `jax.ShapeDtypeStruct`.
      xs: inputs `[T, ...]`; arrays or `jax.ShapeDtypeStruct`.
      length: T; needed only if `xs` is None.
      reverse: as for `scan`.
      unroll: as for `scan`.
      tune: True, "train" (the step with its gradient) or "forward": run the step
        with each of a handful of plans for about ten seconds, and take the one that is
        clearly fastest. Options that you give are not changed. Arrays are used as they
        are; for `jax.ShapeDtypeStruct`, and inside `jax.jit`, made-up numbers are used.
        The choice is kept in `$SCANRNN_CACHE`, or in `scanrnn` in the user's cache
        folder, and read again for the same step, shapes, versions and machine. True
        means "forward" for a step that has no gradient.
      **options: fields of `Options`, such as `residuals="recompute"`.

    Returns:
      A `Plan`: `print` it, look at `plan.gemms`, pass it to `scan`.

    Raises:
      TypeError: as `scan` does, or for an option that does not exist.
      ValueError: as `scan` does; with `tune`, if it is unknown, if a size is
        symbolic, or if the step cannot be run on its own.

    Warns:
      UserWarning: if a file of the tuner cannot be trusted (it tunes again), or
        its folder cannot be written.

    Example:
      >>> import jax.numpy as jnp, scanrnn
      >>> W, U = jnp.ones((30, 64)), jnp.eye(64)
      >>> def step(h, x):
      ...     h = jnp.tanh(x @ W + h @ U)
      ...     return h, h
      >>> plan = scanrnn.plan(step, jnp.zeros((2, 64)), jnp.ones((50, 2, 30)))
      >>> print(plan)  # doctest: +ELLIPSIS
      Plan: 50 steps, 1 GEMM per step in the loop (of 2 in the step ...).
      On ..., estimates of a training step: planned ... ms, scan ... ms, ...
      <BLANKLINE>
      path            phase                 M    N    K  count  where
      --------------  -------------------  --  ---  ---  -----  ------
      layer-to-layer  forward              64  100   30      1  before
      recurrent       forward              64    2   64     50  loop
      layer-to-layer  activation gradient  30  100   64      1  after
      recurrent       activation gradient  64    2   64     50  loop
      layer-to-layer  weight gradient      30   64  100      1  after
      recurrent       weight gradient      64   64  100      1  after
      ...

    Reference:
      NVIDIA, "Optimizing Recurrent Layers User's Guide", whose table this is.
    """
    try:
        chosen = Options(**options)
    except TypeError as error:
        known = ", ".join(Options.__dataclass_fields__)
        raise TypeError(f"plan: {error}; options are {known}") from None
    steps = _unrolled(unroll)
    traced = trace(f, init, xs, length)

    def make(options):
        return _fitted(traced, options, bool(reverse), steps)

    return make(chosen) if tune is False else tuned(traced, chosen, make, tune)


def _check(plan, implementation) -> None:
    check_name(implementation)
    if plan is not None and not isinstance(plan, Plan | Options):
        raise TypeError(
            "scan: plan must be None, scanrnn.Options(...) or what scanrnn.plan "
            f"returned; got {type(plan).__name__}"
        )


def _unrolled(unroll) -> int:
    """The unroll factor, 0 for all steps: `True == 1` would be one plan for two."""
    if isinstance(unroll, bool | np.bool_):
        return 0 if unroll else 1
    try:
        steps = operator.index(unroll)
    except TypeError:
        raise TypeError(
            "scan: unroll must be a bool or a whole number of steps; got "
            f"{unroll!r} of type {type(unroll).__name__}"
        ) from None
    if steps < 0:
        raise ValueError(f"scan: unroll must be a bool or at least 0; got {unroll}")
    return steps


def _fitted(traced: Traced, plan, reverse, unroll, implementation=None) -> Plan:
    """The plan of a traced step, made once; an old plan must fit it."""
    options = plan.options if isinstance(plan, Plan) else plan or Options()
    if implementation is not None:
        options = dataclasses.replace(options, implementation=implementation)
    machine = _machine(traced, plan, options)
    plans = _plans.setdefault(traced.source, {})
    key = (options, machine, traced.length, reverse, unroll)
    if key not in plans:

        def make(rules):
            return make_plan(traced, options, machine, rules, reverse, unroll)

        plans[key] = assign(make, machine, options.implementation)
    if isinstance(plan, Plan) and plan.signature() != plans[key].signature():
        raise ValueError(
            "scan: plan was made for other arguments: it is for (weights, carry, xs), "
            f"steps, reverse, unroll = {plan.signature()}, this call has "
            f"{plans[key].signature()}; make it again with scanrnn.plan"
        )
    return plans[key]


def _machine(traced: Traced, plan, options: Options) -> Machine:
    """What was said, what a plan was made for, or where the arrays are."""
    if options.machine is not None:
        return machine_named(options.machine)
    if isinstance(plan, Plan):
        return plan.machine
    return machine_of([*traced.xs, *traced.init, *traced.weights])
