"""Choose among a few plans by measuring them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from scanrnn._tune import memory
from scanrnn._tune.checks import check
from scanrnn._tune.clock import time_of
from scanrnn._tune.kernels import kernels, without_wrong
from scanrnn._tune.orientations import orientations
from scanrnn._warn import warn
from scanrnn.executors import EXECUTORS, has_kernels
from scanrnn.planner import Options, Plan, Traced, Tuning
from scanrnn.planner.ir.batching import REFUSALS
from scanrnn.planner.ir.graph import struct_of

# Values to try, one at a time, for options that have their default. Orientations, which
# depend on the loop, come after them.
VARIED = {
    "hoist": False,
    "layout": False,
    "sink": False,
    "merge": False,
    "residuals": "recompute",
}
DEFAULT = "as asked"
# A candidate must be this much faster than the plan that was asked for.
MARGIN = 1.03
BUDGET = 10.0  # seconds of measured runs, all candidates together
LEAST_ROUNDS, MOST_ROUNDS = 3, 50


class Timed(NamedTuple):
    """One way to run the step: its label, its options, and a function that runs it."""

    label: str
    options: Options
    run: Callable[[], Any]


def tuned(
    traced: Traced, options: Options, make: Callable[[Options], Plan], tune: bool | str
) -> Plan:
    """Measure the plan `make(options)` and variations of it. Returns the best plan.

    Another plan is chosen only if it is at least `MARGIN` times as fast.

    Args:
      traced: the step; weights, init and xs may be abstract.
      options: the options that were asked for. Those that differ from the default are
        not varied.
      make: makes a plan of this step from options.
      tune: True, "train" or "forward".

    Returns:
      The plan, with its `tuning`; or the base plan if there is nothing to choose from.

    Raises:
      ValueError: if `tune` is unknown, if there are several processes, if a size is
        symbolic, if `tune` is "train" for a step without a gradient, or if the step
        cannot be run on its own.
    """
    check(traced, tune)
    given, base = options, make(options)
    first = base
    by_estimate = given.implementation is None and has_kernels(base.executor.executor)
    if base.unplanned is None and (base.reason is not None or by_estimate):
        # The estimate prefers `lax.scan` or a kernel, but a measurement may not.
        options = dataclasses.replace(given, implementation="planned")
        base = make(options)
    if base.reason is not None and not _runs_otherwise(given, make):
        return base  # nothing to choose from: every variation is lax.scan too
    goal = _goal(base, traced, tune)
    known = _candidates(given, base, {first.executor.name, base.executor.name})
    found_kernels = {} if given.implementation else kernels(base, make)
    known |= found_kernels
    if by_estimate:
        found_kernels[DEFAULT] = given
    key = memory.key_of(traced, given, base, goal)
    where = memory.path_of(key)
    found = memory.recalled(where, key, known)
    if found is None:
        plans = _plans(known, make)
        seconds = _measure(traced, plans, goal, found_kernels)
        chosen = _choice(seconds)
        if not memory.remember(where, key, known[chosen], seconds):
            where = None
    else:
        chosen, seconds = found
    tuning = Tuning(goal, chosen, seconds, where and str(where))
    return dataclasses.replace(make(known[chosen]), tuning=tuning)


def _without_kernels() -> list[str]:
    """The executors without kernels. Where one refuses a plan, it is not tried."""
    return [name for name, each in EXECUTORS.items() if not has_kernels(each)]


def _runs_otherwise(given: Options, make: Callable[[Options], Plan]) -> bool:
    """Whether an executor without kernels can run the step, besides `lax.scan`."""
    for name in () if given.implementation else _without_kernels():
        with contextlib.suppress(ValueError):
            plan = make(dataclasses.replace(given, implementation=name))
            if plan.reason is None:
                return True
    return False


def _plans(known: dict[str, Options], make: Callable[[Options], Plan]) -> dict:
    """The plans, without variations that the executor that was asked for refuses."""
    plans = {DEFAULT: make(known[DEFAULT])}
    for label, options in known.items():
        with contextlib.suppress(ValueError):
            plans[label] = make(options)
    return plans


def _groups(traced: Traced) -> tuple[list, ...]:
    return traced.weights, traced.init, traced.xs


def _candidates(given: Options, base: Plan, known: set[str]) -> dict[str, Options]:
    """What was asked for, and variations of the options of `base`, by label.

    `base` has the options asked for, or "planned" too if the estimate prefers
    `lax.scan` or a kernel; `known` are the names of the executors that run both.
    """
    found, default, options = {DEFAULT: given}, Options(), base.options
    if options != given:
        found[f"implementation={options.implementation!r}"] = options
    sized = (options.residuals, options.chunk) != (default.residuals, default.chunk)
    varied = [*VARIED.items(), *(("features_first", v) for v in orientations(base))]
    for name, value in varied:
        if getattr(given, name) == getattr(default, name):
            label = f"{name}={value!r}"
            found[label] = dataclasses.replace(options, **{name: value})
    # `residuals` and `chunk` are for planned loops alone.
    if given.implementation is None and not sized:
        for name in (n for n in _without_kernels() if n not in known):
            label = f"implementation={name!r}"
            found[label] = dataclasses.replace(options, implementation=name)
    return found


def _program(plan: Plan, goal: str) -> Callable:
    """The program to time: the plan, or the gradient of the sum of its outputs."""
    run = plan.executor.run

    def forward(weights, init, xs):
        return run(plan, weights, init, xs)

    def train(*groups):
        leaves, tree = jax.tree.flatten(groups)
        moving = [i for i, x in enumerate(leaves) if _is_float(x)]

        def loss(floats):
            full = dict(enumerate(leaves)) | dict(zip(moving, floats, strict=True))
            outs = jax.tree.leaves(forward(*tree.unflatten(full.values())))
            return sum(jnp.sum(y) for y in outs if _is_float(y))

        return jax.value_and_grad(loss)([leaves[i] for i in moving])

    return forward if goal == "forward" else train


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _goal(plan: Plan, traced: Traced, tune: bool | str) -> str:
    """What to time: "train", or "forward" if asked for or if there is no gradient."""
    if tune == "forward":
        return "forward"
    args = [[struct_of(jax.typeof(v)) for v in group] for group in _groups(traced)]
    try:
        jax.eval_shape(_program(plan, "train"), *args)
    except REFUSALS as error:
        if tune is True:
            return "forward"
        raise ValueError(
            'plan: tune="train" needs a step with a gradient (say tune="forward"); '
            f"JAX says: {error}"
        ) from error
    return "train"


def _measure(
    traced: Traced, plans: dict[str, Plan], goal: str, checked: dict[str, Options]
) -> dict[str, float]:
    """The median seconds of each plan whose program differs from those before it.

    The kernels, named in `checked`, are timed only if their results are right.
    """
    # Under jax.jit, measure now, on made-up numbers; nothing of it enters the program.
    now = jax.ensure_compile_time_eval
    with now():
        args = [[_concrete(v) for v in group] for group in _groups(traced)]
        plans = {name: _with_numbers(plan) for name, plan in plans.items()}
    try:
        candidates = _compiled(plans, goal, args)
        with now():
            return _medians(without_wrong(candidates, checked))
    except Exception as error:
        raise ValueError(
            "plan: tune could not run the step on its own (inside shard_map, or "
            "where it needs a mapped axis, it has to be planned without tune, or "
            f"tuned outside); JAX says: {error}"
        ) from error


def _concrete(value):
    """An array as it is; for a struct or a tracer, made-up numbers of its type."""
    if not isinstance(value, jax.ShapeDtypeStruct | Tracer):
        return value
    if not _is_float(value):
        return jnp.zeros(value.shape, value.dtype)
    numbers = 0.1 * np.random.default_rng(0).standard_normal(value.shape)
    return jnp.asarray(numbers, value.dtype)


def _with_numbers(plan: Plan) -> Plan:
    return dataclasses.replace(plan, consts=tuple(map(_concrete, plan.consts)))


def _compiled(plans, goal, args) -> list[Timed]:
    """The candidates, each run once: the first run fills pages and caches.

    One that this device cannot compile or run is left out, unless it is what was asked
    for.
    """
    found, seen = [], set()
    for label, plan in plans.items():
        # A kernel that is traced under `ensure_compile_time_eval` could not read the
        # index of a grid point.
        program = jax.jit(_program(plan, goal)).trace(*args)
        text = re.sub(" at 0x[0-9a-f]+", "", str(program.jaxpr))
        if text in seen:
            continue
        seen.add(text)
        try:
            run = functools.partial(program.lower().compile(), *args)
            candidate = Timed(label, plan.options, run)
            with jax.ensure_compile_time_eval():
                time_of(candidate.run)
        except Exception as error:
            if label == DEFAULT:
                raise
            line = f"{type(error).__name__}: {error}".partition("\n")[0]
            warn(
                f"plan: {label} does not run on this device, and is left out ({line})",
            )
        else:
            found.append(candidate)
    return found


def _medians(candidates: list[Timed]) -> dict[str, float]:
    """The median seconds of each candidate.

    The rounds are interleaved, so that a slow phase of the machine affects all alike.
    """
    if len(candidates) == 1:
        return {candidates[0].label: time_of(candidates[0].run)}
    times: dict[str, list[float]] = {c.label: [] for c in candidates}
    spent, rounds = 0.0, 0
    while rounds < LEAST_ROUNDS or (spent < BUDGET and rounds < MOST_ROUNDS):
        for candidate in candidates[:: -1 if rounds % 2 else 1]:
            times[candidate.label].append(time_of(candidate.run))
            spent += times[candidate.label][-1]
        rounds += 1
    return {label: statistics.median(found) for label, found in times.items()}


def _choice(seconds: dict[str, float]) -> str:
    best = min(seconds, key=seconds.__getitem__)
    default = seconds.get(DEFAULT, math.inf)  # a kernel that is wrong was left out
    return best if seconds[best] * MARGIN < default else DEFAULT
