"""The plans of the loops in a function: of layers, of `scan`, and of `accelerate`."""

from __future__ import annotations

import contextvars
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax

from scanrnn._plans import forget
from scanrnn.planner import Plan

# The list that `plans` fills, while it traces a function.
_found: contextvars.ContextVar[list[Plan] | None]
_found = contextvars.ContextVar("scanrnn_found", default=None)
_calls = itertools.count(1)


@functools.cache
def _anew() -> Callable:
    """A setting of JAX: with a new value, it traces again what is in its caches."""
    return jax.make_user_context(0)


def is_watched() -> bool:
    """Whether `plans` traces this call."""
    return _found.get() is not None


def note(plan: Plan) -> None:
    """Tell `plans`, if it traces this call, what the loop runs."""
    found = _found.get()
    if found is not None:
        found.append(plan)


def unwatched(run: Callable[[], Any]) -> Any:
    """What `run()` returns; `plans` is told of no loop in it."""
    token = _found.set(None)
    try:
        return run()
    finally:
        _found.reset(token)


def plans(fn: Callable, *args: Any, **kwargs: Any) -> list[Plan]:
    """The plan of every loop that `fn(*args, **kwargs)` runs by scanrnn.

    These are the loops of our layers, of `scanrnn.scan`, and of the `lax.scan` calls
    under `scanrnn.accelerate`, however deep in `fn` they are. `fn` is traced, also if
    it is jitted. Nothing runs. A part of `fn` that JAX traces once, such as a jitted
    layer that is called twice, has its plans in the list once.

    Args:
      fn: a function, a layer, a model, or a training step. Give an NNX module that
        changes its own state (dropout) as `fn` or among the arguments: one that `fn`
        only closes over cannot be changed while JAX traces.
      *args: its arguments; arrays, such as `[B, T, D]`, or `jax.ShapeDtypeStruct`.
      **kwargs: the same, by name.

    Returns:
      A `Plan` for each traced loop, in this order. A loop that `lax.scan` runs
      unchanged has a plan with a `reason`.

    Raises:
      TypeError: if `fn` is not callable.
      ValueError: if scanrnn runs no loop in `fn`, or `jax.disable_jit` is on.

    Example:
      >>> import jax, jax.numpy as jnp, scanrnn
      >>> from flax import nnx
      >>> rnn = scanrnn.nnx.LSTM(16, 32, num_layers=2, rngs=nnx.Rngs(0))
      >>> found = scanrnn.plans(rnn, jnp.ones((8, 50, 16)))  # [B, T, D]
      >>> print(found[0])  # doctest: +ELLIPSIS
      Plan: 50 steps, 1 of 2 GEMMs (matrix products) stays in the loop...

    Reference:
      See `scanrnn.plan`.
    """
    if not callable(fn):
        raise TypeError(
            f"plans: fn must be callable, got {type(fn).__name__}; for the plan of a "
            "step use scanrnn.plan(step, init, xs)"
        )
    if getattr(jax.config, "jax_disable_jit", False):
        raise ValueError("plans: jax.disable_jit is on, so lax.scan runs all loops")
    leaves, tree = jax.tree.flatten((fn, args, kwargs))
    described = {
        at: leaf
        for at, leaf in enumerate(leaves)
        if isinstance(leaf, jax.ShapeDtypeStruct)
    }

    def run(traced: dict[int, Any]) -> tuple:
        # These are copies: what the call writes into a module is not kept.
        values = [traced.get(at, leaf) for at, leaf in enumerate(leaves)]
        call, given, named = tree.unflatten(values)
        call(*given, **named)
        return ()  # results need not be arrays

    found: list[Plan] = []
    token = _found.set(found)
    try:
        with _anew()(next(_calls)):
            try:
                jax.make_jaxpr(run)(described)
            finally:
                forget()
    finally:
        _found.reset(token)
    if not found:
        raise ValueError(
            "plans: fn runs no loop by scanrnn: it calls no layer of scanrnn and no "
            "scanrnn.scan; for loops of lax.scan give scanrnn.accelerate(fn)"
        )
    return found
