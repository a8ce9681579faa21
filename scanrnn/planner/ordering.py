"""Telling XLA for CPU what to compute late.

XLA runs what is ready: copies of inputs it makes before the loops that come first,
and keeps them throughout. Nothing inside a branch is computed before the branch is
taken; so here work goes into a branch that is always taken, by a condition that XLA
can neither see through nor evaluate until a given array is there.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

late_p = Primitive("late")
late_p.multiple_results = True


def late(array, f: Callable, *args) -> list:
    """`f(*args)`, a list, which XLA for CPU computes no sooner than `array`.

    It cannot be differentiated.
    """
    return late_p.bind(array, *args, jaxpr=jax.make_jaxpr(f)(*args))


def in_branch(array, f: Callable, *args):
    """`f(*args)` in a branch that is taken when `array` is there.

    Where its numbers have no bits of their own to look at, at once.
    """
    floats = jnp.issubdtype(array.dtype, jnp.floating)
    bits = jnp.finfo(array.dtype).bits if floats else 0
    if bits < 8 or not array.size:
        return f(*args)
    first = lax.slice(array, [0] * array.ndim, [1] * array.ndim).reshape(())
    ones = lax.population_count(lax.bitcast_convert_type(first, f"uint{bits}"))
    outs = jax.eval_shape(f, *args)

    def never(*_):
        return jax.tree.map(lambda out: jnp.zeros(out.shape, out.dtype), outs)

    return lax.cond(ones <= bits, f, never, *args)


def _value(_, *args, jaxpr):
    return jaxpr_as_fun(jaxpr)(*args)


def _on_cpu(array, *args, jaxpr):
    return in_branch(array, jaxpr_as_fun(jaxpr), *args)


def _batched(args, axes, *, jaxpr):
    array, *args = args
    f = jax.vmap(jaxpr_as_fun(jaxpr), tuple(axes[1:]))
    if all(axis is None for axis in axes[1:]):
        outs, axes = late(array, jaxpr_as_fun(jaxpr), *args), None
    else:
        outs, axes = late(array, f, *args), 0
    return outs, [axes] * len(outs)


late_p.def_impl(_value)
late_p.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
batching.primitive_batchers[late_p] = _batched
mlir.register_lowering(late_p, mlir.lower_fun(_value, multiple_results=True))
mlir.register_lowering(
    late_p, mlir.lower_fun(_on_cpu, multiple_results=True), platform="cpu"
)
