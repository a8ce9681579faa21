"""Derivatives of functions, computed from the results of these functions.

They are traced once for each equation of a step. An operator of arrays would be a call
of `jnp`, which JAX traces as a program of its own, so they use `lax`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def _number(value: float, like):
    """A number as an operand of `lax`, of the type of an array beside it."""
    weak = jax.typeof(like).weak_type and like.dtype == jnp.result_type(float)
    return value if weak else like.dtype.type(value)


def _slope_of_tanh(y):
    # Near y = 1, `1 - y` is exact, but `y * y` in half precision loses half of the
    # digits that are left. In float32 both are as exact as y itself, and `1 - y * y` is
    # one operation less.
    one = _number(1.0, y)
    if jnp.finfo(y.dtype).bits < 32:
        return lax.mul(lax.sub(one, y), lax.add(one, y))
    return lax.sub(one, lax.mul(y, y))


# Unary functions whose derivative is a simple function of their *output*. If the output
# is saved, the reverse loop need not evaluate the function again.
FROM_OUTPUT = {
    "tanh": _slope_of_tanh,
    "logistic": lambda y: lax.mul(y, lax.sub(_number(1.0, y), y)),
    "exp": lambda y: y,
    "sqrt": lambda y: lax.div(_number(0.5, y), y),
    "rsqrt": lambda y: lax.mul(lax.mul(lax.mul(_number(-0.5, y), y), y), y),
}
