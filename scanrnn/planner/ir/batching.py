"""Ask JAX whether `vmap` can batch an equation that the planner does not know."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding, PartitionSpec

from scanrnn.planner.ir.functions import of_some
from scanrnn.planner.ir.graph import eval_eqn, struct_of

# What is raised if a program cannot be batched or differentiated. Users write rules, so
# it may be any error. JAX 0.12 fails by an assertion for the gradient of `jnp.sinc`.
REFUSALS = (Exception,)


# What JAX said about the equations of the steps that are being planned.
_known: ContextVar[dict[JaxprEqn, bool] | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def answers_kept() -> Iterator[None]:
    """JAX is asked only once about each equation. Later all is forgotten.

    Several plans of one step are compared, and each asks in several places.
    """
    known = _known.get()
    token = _known.set({} if known is None else known)
    try:
        yield
    finally:
        _known.reset(token)


def can_be_batched(eqn: JaxprEqn) -> bool:
    """Whether `vmap` has a rule for an equation, whichever operand is batched.

    If the equation has a gradient, the batched one must have it too. For example, JAX
    has no gradient of a sparse product with a batch on one side.
    """
    known = _known.get()
    if known is None:
        return _asked(eqn)
    if eqn not in known:
        known[eqn] = _asked(eqn)
    return known[eqn]


def _asked(eqn: JaxprEqn) -> bool:
    """The answer of JAX, which tries it."""
    count = len(eqn.invars)
    alone = (tuple(0 if i == k else None for i in range(count)) for k in range(count))
    ways = dict.fromkeys(axes for axes in ((0,) * count, *alone) if axes)
    if not all(_works(eqn, axes) for axes in ways):
        return False
    if all(_works(eqn, axes, gradient=True) for axes in ways):
        return True
    return not _works(eqn, [None] * count, gradient=True)


def _works(eqn: JaxprEqn, axes: Sequence[int | None], gradient: bool = False) -> bool:
    """Whether JAX can trace the outputs, or the gradient, for two steps at once."""
    structs = [
        _of_two_steps(a.aval) if axis == 0 else struct_of(a.aval)
        for a, axis in zip(eqn.invars, axes, strict=True)
    ]

    def outputs(*values):
        outs = eval_eqn(eqn, values)
        return [out for out in outs if _moves(out)] if gradient else outs

    batched = any(axis == 0 for axis in axes)
    run = jax.vmap(outputs, tuple(axes)) if batched else outputs
    try:
        jax.eval_shape(_gradients(run) if gradient else run, *structs)
    except REFUSALS:
        return False
    return True


def _of_two_steps(aval: Any) -> jax.ShapeDtypeStruct:
    """The type of an array of two steps; the axis of time is not divided."""
    one = struct_of(aval)
    sharding = one.sharding
    if sharding is not None:
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return one.update(shape=(2, *one.shape), sharding=sharding)


def _gradients(run: Callable) -> Callable:
    def gradients(*values):
        at = [i for i, value in enumerate(values) if _moves(value)]
        outs, pull = jax.vjp(of_some(run, values, at), *(values[i] for i in at))
        return pull(outs)

    return gradients


def _moves(value) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)
