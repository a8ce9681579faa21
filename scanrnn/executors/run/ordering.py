"""Tell XLA for CPU what to compute late.

XLA runs what is ready. For example, it copies inputs before the first loops, and keeps
the copies all the time. But it computes nothing inside a branch before the branch is
taken. So this module puts work into a branch that is always taken. XLA cannot simplify
its condition, and cannot evaluate it until a given array is ready.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap


def late(array, f: Callable, *args):
    """Compute `f(*args)` after `array` on XLA for CPU, also under `vmap`.

    The condition must not be batched: then there would be no branch.
    """
    run = custom_vmap(lambda array, *args: in_branch(array, f, *args))

    @run.def_vmap
    def _(_, mapped, array, *args):
        if not any(mapped[1:]):
            return late(array, f, *args), False
        axes = tuple(0 if m else None for m in mapped[1:])
        return late(array, jax.vmap(f, axes), *args), True

    return run(array, *args)


def copied(array):
    """The array in memory of its own: XLA for CPU fuses nothing into a branch."""
    return late(array, lambda a: a, array)


def in_branch(array, f: Callable, *args):
    """Compute `f(*args)` in a branch that is taken when `array` is ready.

    Without a branch if `array` is empty, or if its dtype is not a float of 8 bits or
    more.
    """
    floats = jnp.issubdtype(array.dtype, jnp.floating)
    bits = jnp.finfo(array.dtype).bits if floats else 0
    if bits < 8 or not array.size:
        return f(*args)
    first = lax.reshape(lax.slice(array, [0] * array.ndim, [1] * array.ndim), ())
    ones = lax.population_count(lax.bitcast_convert_type(first, f"uint{bits}"))
    outs = jax.eval_shape(f, *args)

    def never(*_):
        return jax.tree.map(lambda out: jnp.zeros(out.shape, out.dtype), outs)

    return lax.cond(ones <= bits, f, never, *args)
