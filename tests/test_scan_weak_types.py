"""Python numbers as carries and weights: types are the same as from `lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from tests import step_table
from tests.step_table import B, H, T

ARRAYS = step_table.arrays(jax.random.key(3), U=(H, H), h=(B, H), xs=(T, B, H))
U, FIRST, XS = ARRAYS.values()


def gains(p, carry, x):
    a, b, h = carry
    h = jnp.tanh(h @ U * a + x @ U * b)
    return (a * p, b + a, h), h * a


def means(p, carry, x):
    a, b, h = carry
    h = jnp.tanh(h @ U * a + x @ U * b + p)
    return (a * 0.5, jnp.mean(h), h), (h, a, b)


def places(p, carry, x):
    a, b, h = carry
    h = jnp.tanh(h @ U * a + x @ U * b * p)
    return (b, a, h), a * p


def kept(p, carry, x):
    a, b, h = carry
    h = jnp.tanh(p * (h @ U) + x @ U)
    return (a, b * p, h), (p * a, p)


def constants(p, carry, x):
    a, b, h = carry
    h = jnp.tanh(h @ U * a + x @ U)
    return (0.5, b, h), (h, 1.0 * p)


NUMBERS = {
    "python": (0.1, 0.2, 0.3),
    "array first": (jnp.asarray(0.1, float), 0.2, 0.3),
    "numpy first": (np.float64(0.1), 0.2, 0.3),
    "integer": (0.1, 2, 0.3),
    "array weight": (0.1, 0.2, jnp.asarray(0.3, float)),
}


def types(tree):
    return [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]


def programs(scan, step, a, b, p):
    """The outputs, and the gradients for weights and carries, as types."""

    def outputs(a, b, p, h, xs):
        return scan(functools.partial(step, p), (a, b, h), xs)

    def loss(*args):
        return sum(jnp.sum(1.0 * out) for out in jax.tree.leaves(outputs(*args)))

    args = (a, b, p, FIRST, XS)
    floats = [i for i, x in enumerate(args) if not isinstance(x, int)]
    outs = jax.eval_shape(lambda: outputs(*args))
    grads = jax.eval_shape(lambda: jax.grad(loss, floats)(*args))
    return outs, dict(zip(floats, grads, strict=True))


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize(
    "step", [gains, means, places, kept, constants], ids=lambda f: f.__name__
)
def test_values_and_gradients_of_weak_numbers_have_the_types_of_lax_scan(step, numbers):
    args = NUMBERS[numbers]
    outs, grads = programs(scanrnn.scan, step, *args)
    wanted_outs, wanted_grads = programs(lax.scan, step, *args)
    assert types(outs) == types(wanted_outs)
    for i, got in grads.items():
        wanted = wanted_grads[i]
        assert got.dtype == wanted.dtype
        # Here the gradient of a weak number is always weak. If a step makes the carry
        # not weak, lax.scan gives a gradient that is not weak.
        changes = i < 2 and jax.typeof(args[i]).weak_type != outs[0][i].weak_type
        assert got.weak_type == wanted.weak_type or changes
