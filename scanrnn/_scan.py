"""The main functions: `scan` and `plan`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from scanrnn._plans import keep, plans_of
from scanrnn._tune import tuned
from scanrnn._watch import is_watched, note, unwatched
from scanrnn.executors import EXECUTORS as EXECUTORS
from scanrnn.executors import assign, check_name
from scanrnn.executors import by_name as by_name
from scanrnn.machines import Machine, machine_named, machine_of
from scanrnn.planner import Options, Plan, Traced, make_plan, trace
from scanrnn.planner.ir import compat
from scanrnn.planner.options import UNCHANGED


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
    function and under every transformation. Only the place of the work differs:
    matrix products that need no carry run once before the loop, readouts run once
    after it, and weight gradients are computed once, after the reverse loop.

    Args:
      f: one time step, `f(carry, x) -> (carry, y)`; it may close over arrays.
      init: the initial carry, a pytree of arrays.
      xs: inputs, a pytree of arrays `[T, ...]`, or None.
      length: T; needed only if `xs` is None.
      reverse: run from the last step to the first.
      unroll: the unroll factor of the loop; 0 or True unrolls it fully.
      _split_transpose: as for `jax.lax.scan`. It has an effect only where
        `jax.lax.scan` itself runs; a planned reverse loop is always split.
      plan: `Options` for the planner, or a `Plan` of this step to use again.
      implementation: the executor. None takes the one with the lowest estimate.
        "planned" runs the planner's loops, or raises an error that says why it cannot.
        "associative" runs loops that are affine in their carry in parallel over time.
        "chunkwise" runs matrix memories and delta rules by products of chunks.
        "fission" runs several loops, one after the other, such as one for each layer.
        "scan" is `jax.lax.scan` itself. "pallas_tpu" makes one kernel of each loop, on
        a TPU, and "pallas_gpu" one of each loop that fits, on an NVIDIA GPU. On an H100
        or H200 the estimate may choose "pallas_gpu". Elsewhere kernels run only if you
        ask for them, or if `scanrnn.plan(..., tune=True)` finds them right and faster
        on your device.

    Returns:
      `(carry, ys)`: the final carry, and the outputs stacked to `[T, ...]`.

    Raises:
      TypeError: if `f` changes the structure, a shape or a dtype of its carry, or if
        an argument has the wrong type.
      ValueError: if the leading sizes of `xs` disagree, if `unroll` is negative, if
        `plan` was made for other arguments, or if `implementation` is unknown or
        cannot run this step.

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
    # As an array these would not be hashable, which only `lax.scan` minds.
    reverse, steps = bool(reverse), _unrolled(unroll)
    split = {"_split_transpose": True} if _split_transpose else {}
    unplanned = functools.partial(
        lax.scan, f, init, xs, length, reverse, steps, **split
    )
    as_asked = implementation == UNCHANGED and not is_watched()
    if as_asked or getattr(jax.config, "jax_disable_jit", False):
        return unplanned()
    traced = trace(f, init, xs, length)
    found = _fitted(traced, plan, reverse, steps, implementation)
    note(found)
    if found.executor.name == UNCHANGED:
        return unwatched(unplanned)  # `trace` has seen the loops in `f`
    groups = traced.weights, traced.init, traced.xs
    moves = any(map(compat.has_tangent, itertools.chain(*groups)))
    carry, ys = found.compiled(*groups, differentiated=moves)
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
    """Plan what `scan` will run for these arguments, and say why.

    Nothing runs, except with `tune`.

    Args:
      f: one time step, as for `scan`.
      init: the initial carry; arrays or `jax.ShapeDtypeStruct`.
      xs: inputs `[T, ...]`; arrays or `jax.ShapeDtypeStruct`.
      length: T; needed only if `xs` is None.
      reverse: as for `scan`.
      unroll: as for `scan`.
      tune: False, True, "train" or "forward". The tuner measures a few plans, for
        about ten seconds plus the time to compile them, and takes another plan only if
        it is clearly faster. "train" measures the loop with its gradient, "forward" the
        loop alone. True means "train", or "forward" for a step that has no gradient.
        Options that you give are not changed. The arrays you give are used; for
        `jax.ShapeDtypeStruct`, and inside `jax.jit`, made-up numbers are used. The
        choice is kept in the folder `$SCANRNN_CACHE`, or in `scanrnn` in the user's
        cache folder. It is read again for the same step, shapes, shardings, versions
        and machine.
      **options: fields of `Options`, such as `residuals="recompute"`.

    Returns:
      A `Plan`: `print` it, look at `plan.gemms`, pass it to `scan`.

    Raises:
      TypeError: as `scan` does, or for an option that does not exist.
      ValueError: as `scan` does; also if `tune` is unknown, or, with `tune`, if there
        are several processes (tune in one, and pass the options of its plan), if a size
        is symbolic or the step cannot be run on its own, or has no gradient ("train").

    Warns:
      UserWarning: if the tuner does not trust one of its files (then it measures
        again), or if its folder cannot be written; for each candidate that the device
        cannot compile or run, and for each kernel that is wrong. These are left out.

    Example:
      >>> import jax.numpy as jnp, scanrnn
      >>> W, U = jnp.ones((30, 64)), jnp.eye(64)
      >>> def step(h, x):
      ...     h = jnp.tanh(x @ W + h @ U)
      ...     return h, h
      >>> plan = scanrnn.plan(step, jnp.zeros((2, 64)), jnp.ones((50, 2, 30)))
      >>> print(plan)  # doctest: +ELLIPSIS
      Plan: 50 steps, 1 of 2 GEMMs (matrix products) stays in the loop.
      On ..., estimates of a training step: planned ... ms, scan ... ms.
      Loop for values: 50 steps; a step has 1 GEMM, reads 1 row (512 B), writes 1 ...
      Loop that records: 50 steps; a step has 1 GEMM, reads 1 row (512 B), writes 1 ...
      Loop in reverse: 50 steps; a step has 1 GEMM, reads 2 rows (1.024 kB), writes ...
      Kept for the reverse loop (minimal): 0 B, lax.scan keeps ...
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
    if unknown := sorted({*options} - {*Options.__dataclass_fields__}):
        known = ", ".join(Options.__dataclass_fields__)
        raise TypeError(f"plan: there is no option {unknown[0]!r}; options are {known}")
    chosen = Options(**options)
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
    """The unroll factor; 0 unrolls all steps.

    `True == 1` in Python, so True as a key would share its plan with 1.
    """
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
    """The plan of a traced step, made once. A plan that was given must fit it."""
    options = plan.options if isinstance(plan, Plan) else plan or Options()
    if implementation is not None:
        options = dataclasses.replace(options, implementation=implementation)
    machine = _machine(traced, plan, options)
    plans = plans_of(traced)
    key = (traced.length, reverse, unroll, options, machine)
    found = plans.get(key)
    if found is None:

        def make(rules):
            return make_plan(traced, options, machine, rules, reverse, unroll)

        found = assign(make, machine, options.implementation)
        keep(plans, key, found)
    if isinstance(plan, Plan) and plan.signature() != found.signature():
        raise ValueError(
            "scan: plan was made for other arguments: it is for (weights, carry, xs), "
            f"steps, reverse, unroll = {plan.signature()}, this call has "
            f"{found.signature()}; make it again with scanrnn.plan"
        )
    return found


def _machine(traced: Traced, plan, options: Options) -> Machine:
    """The machine: that of the options, else of a given plan, else of the arrays."""
    if options.machine is not None:
        return machine_named(options.machine)
    if isinstance(plan, Plan):
        return plan.machine
    return machine_of([*traced.xs, *traced.init, *traced.weights])
