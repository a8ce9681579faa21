"""Derivatives from a saved output are as accurate as JAX's own rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from scanrnn.planner.ir import ops


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# The function, its exact derivative, the points to test, and how many units of rounding
# its error may exceed that of JAX's rule. For rsqrt we use y**3 in place of y / x.
SLOPES = {
    "tanh": (jnp.tanh, lambda x: 1 / np.cosh(x) ** 2, (-6, 6), 0),
    "logistic": (jax.nn.sigmoid, lambda x: sigmoid(x) * sigmoid(-x), (-9, 9), 0),
    "exp": (jnp.exp, np.exp, (-5, 5), 0),
    "sqrt": (jnp.sqrt, lambda x: 0.5 / np.sqrt(x), (0.1, 9), 0),
    "rsqrt": (lax.rsqrt, lambda x: -0.5 * x**-1.5, (0.1, 9), 1),
}


def test_every_derivative_from_an_output_is_looked_at():
    assert set(SLOPES) == set(ops.FROM_OUTPUT)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", SLOPES)
def test_derivative_from_an_output_is_as_accurate_as_that_of_jax(name, dtype):
    f, exact, span, more = SLOPES[name]
    x = jnp.linspace(*span, 997).astype(dtype)
    wanted = exact(np.asarray(x, float))

    def errors(slope):
        found = np.abs(np.asarray(slope, float) / wanted - 1)
        bins = np.floor(np.asarray(x, float)).astype(int)
        return (
            np.array([np.mean(found[bins == b] ** 2) for b in np.unique(bins)]) ** 0.5
        )

    ours = errors(ops.FROM_OUTPUT[name](f(x)))
    theirs = errors(jax.vmap(jax.grad(f))(x))
    assert np.all(ours <= 1.1 * theirs + more * float(jnp.finfo(dtype).eps))
