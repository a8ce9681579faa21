"""Other libraries' cells, given the parameters of ours.

A file holds `LAYERS`: by the name of a row of `cell_table`, a differentiable function
of our params, xs `[T, B, D]` and our carry, that runs the library's own layer or cell,
and returns the last carry as a tuple in our order, and the outputs `[T, B, H]`.
"""

import jax.numpy as jnp


def gates(a, order):
    """The gates along the last axis of `a`, in another order."""
    parts = jnp.split(a, len(order), axis=-1)
    return jnp.concatenate([parts[k] for k in order], axis=-1)


def split(a, count):
    """The gates along the last axis of `a`, one by one."""
    return jnp.split(a, count, axis=-1)
