"""Random numbers of a step do not change if other work runs for all steps at once."""

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from tests.compare import assert_same, value_and_gradients
from tests.step_table import arrays

T, B, H = 5, 3, 4
THREEFRY = pytest.param("threefry2x32", marks=pytest.mark.slow)
UNSAFE = pytest.param("unsafe_rbg", marks=pytest.mark.slow)


def keyed(impl):
    """Noise from a key in the carry, and dropout from a key of each step."""
    key = jax.random.key(0)
    params = arrays(key, W=(H, H), V=(H, H))

    def step(p, carry, x):
        (h, key), (x, own) = carry, x
        key, now = jax.random.split(key)
        noise = 0.1 * jax.random.normal(now, h.shape)
        h = jnp.tanh(x @ p["W"] + h @ p["V"] + noise)
        h = h * jax.random.bernoulli(own, 0.8, h.shape)
        return (jnp.tanh(h @ p["V"]), key), h

    keys = jax.random.split(jax.random.key(3, impl=impl), T)
    init = jnp.ones((B, H)), jax.random.key(1, impl=impl)
    return step, params, init, (jax.random.normal(key, (T, B, H)), keys)


@pytest.mark.slow
@pytest.mark.parametrize("residuals", ["minimal", "recompute", "everything"])
@pytest.mark.parametrize("impl", [THREEFRY, "rbg", UNSAFE])
def test_noise_of_any_key_is_that_of_each_step(impl, residuals):
    """For most kinds of keys, `vmap` draws other numbers than single steps."""
    plan = scanrnn.Options(residuals=residuals)
    assert_same(keyed(impl), value_and_gradients, plan=plan)


@pytest.mark.parametrize("machine", ["h100", "tpu v5e"])
def test_noise_is_made_again_alike(machine):
    plan = scanrnn.Options(machine=machine, residuals="recompute", chunk=2)
    assert_same(keyed("rbg"), value_and_gradients, plan=plan)
