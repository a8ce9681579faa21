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


def nested(kind):
    """A step that draws random numbers in a program of its own."""
    W = arrays(jax.random.key(5), W=(H, H))["W"]

    def kept(h, key):
        return jnp.tanh(h @ W) * jax.random.bernoulli(key, 0.5, h.shape)

    def scanned(h, key):
        keys = jax.random.split(key, 2)
        return jax.lax.scan(lambda h, key: (kept(h, key), None), h, keys)[0]

    return jax.checkpoint(kept) if kind == "checkpoint" else scanned


@pytest.mark.parametrize("kind", ["checkpoint", "scan"])
def test_noise_of_a_program_in_a_step_is_that_of_each_step(kind):
    """Its mask was drawn again for all steps at once, for the gradient of U."""
    draw = nested(kind)

    def step(p, h, x):
        x, key = x
        h = jnp.tanh(x + draw(h, key) @ p["U"])
        return h, h

    keys = jax.random.split(jax.random.key(3, impl="rbg"), T)
    params, init = arrays(jax.random.key(0), U=(H, H)), jnp.ones((B, H))
    xs = jax.random.normal(jax.random.key(1), (T, B, H))
    assert_same((step, params, init, (xs, keys)), value_and_gradients)
