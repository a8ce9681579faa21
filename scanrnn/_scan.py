"""The front door: `scan` and `plan`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from scanrnn.executors import EXECUTORS
from scanrnn.planner import Options, Plan, make_plan, trace

_plans: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def scan(
    f: Callable,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    plan: Plan | Options | None = None,
    implementation: str | None = None,
):
    r"""`jax.lax.scan`, planned: what can leave the loop leaves it."""
    _check(plan, implementation)
    if implementation == "scan" or jax.config.jax_disable_jit:
        return lax.scan(f, init, xs, length=length, reverse=reverse, unroll=unroll)
    traced = trace(f, init, xs, length)
    options = plan.options if isinstance(plan, Plan) else plan or Options()
    found = _planned(traced, options, reverse, unroll)
    if isinstance(plan, Plan) and plan.signature() != found.signature():
        raise ValueError("scan: plan does not fit")
    if found.plain is not None:
        if implementation is not None:
            reason = EXECUTORS[implementation].supports(found)
            raise ValueError(
                f"scan: implementation={implementation!r} cannot run this step: {reason}"
            )
        return lax.scan(f, init, xs, length=length, reverse=reverse, unroll=unroll)
    final, ys = _runner(found)(traced.weights, traced.init, traced.xs)
    return (
        jax.tree.unflatten(traced.carry_tree, final),
        jax.tree.unflatten(traced.ys_tree, ys),
    )


def plan(f, init, xs=None, length=None, reverse=False, unroll=1, *, residuals="minimal", **options) -> Plan:
    """The plan."""
    traced = trace(f, init, xs, length)
    return _planned(traced, Options(residuals=residuals, **options), reverse, unroll)


def _check(plan, implementation):
    if implementation is not None and implementation not in EXECUTORS:
        raise ValueError(
            f"scan: implementation must be None or one of {', '.join(EXECUTORS)}; "
            f"got {implementation!r}"
        )


def _planned(traced, options, reverse, unroll) -> Plan:
    """The plan of a traced step, made once per step, shapes and options."""
    plans = _plans.setdefault(traced.source, {})
    key = (options, reverse, unroll, traced.length)
    if key not in plans:
        plans[key] = make_plan(traced, options, reverse, unroll)
    return plans[key]


def _runner(plan):
    """The compiled program of a plan; one per plan, so one compilation."""
    return plan.__dict__.setdefault("_runner", jax.jit(functools.partial(_run, plan)))


def _run(plan, weights, init, xs):
    weights = [*weights, *(init[i] for i in plan.invariant), *plan.consts]
    kept = [i for i in range(len(init)) if i not in plan.invariant]
    after, ys = EXECUTORS["planned"].run(plan, weights, [init[i] for i in kept], xs)
    final = list(init)
    for i, c in zip(kept, after, strict=True):
        final[i] = c
    return final, ys
