"""Kernels of steps that draw random numbers, which are then drawn before the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn.executors import pallas_gpu, pallas_tpu

NAMES = (pallas_gpu.NAME, pallas_tpu.NAME)
T, B, H = 5, 2, 16


def recurrent(params, h, x):
    """Noise on a state, and dropout of it; the two keys come from one."""
    x, key = x
    noisy, kept = jax.random.split(key)
    z = x @ params["W"] + h @ params["U"]
    h = jnp.tanh(z + 0.1 * jax.random.normal(noisy, h.shape, h.dtype))
    return jnp.where(jax.random.bernoulli(kept, 0.8, h.shape), h / 0.8, 0.0), h


def zoneout(params, h, x):
    """An average without products, some features of which keep their value."""
    x, key = x
    new = params["a"] * h + x
    kept = jax.random.bernoulli(key, 0.3, h.shape)
    return jnp.where(kept, h, new), new


def silent(params, h, x):
    """The same without outputs, by one of two keys."""
    x, key = x
    _, key = jax.random.split(key)
    return zoneout(params, h, (x, key))[0], ()


def arguments(make):
    """Params, initial carry, xs and a key for each step; `make` makes the first key."""
    drawn = jax.random.split(jax.random.key(0), 5)
    shapes = {"W": (H, H), "U": (H, H), "a": (H,)}
    pairs = zip(drawn, shapes.items(), strict=False)
    params = {name: 0.3 * jax.random.normal(k, shape) for k, (name, shape) in pairs}
    h, xs = jax.random.normal(drawn[3], (B, H)), jax.random.normal(drawn[4], (T, B, H))
    return jax.tree.map(jnp.float32, (params, h, xs)), jax.random.split(make(7), T)


def values_and_gradients(step, implementation, args, keys):
    def loss(params, h, xs):
        bound = functools.partial(step, params)
        outs = scanrnn.scan(bound, h, (xs, keys), implementation=implementation)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs)), outs

    f = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    return jax.tree.leaves(jax.jit(f)(*args))


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
@pytest.mark.parametrize("step", [recurrent, zoneout, silent])
@pytest.mark.parametrize("name", NAMES)
def test_noise_in_a_kernel_is_that_of_lax_scan(name, step, make):
    both = (values_and_gradients(step, n, *arguments(make)) for n in ("scan", name))
    for wanted, got in zip(*both, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_mask_is_made_before_the_loop_of_a_kernel(name):
    """A mask has one byte for a number, and the numbers it is made from have four."""
    (params, h, xs), keys = arguments(jax.random.key)
    step = functools.partial(zoneout, params)
    plan = scanrnn.plan(step, h, (xs, keys), implementation=name)
    assert [v.aval.dtype for v in plan.stages.before.ys] == [jnp.bool_]


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_differ_for_all_steps_at_once_are_refused(name):
    (params, h, xs), keys = arguments(functools.partial(jax.random.key, impl="rbg"))
    step = functools.partial(recurrent, params)
    with pytest.raises(ValueError, match="a kernel reads no key"):
        scanrnn.plan(step, h, (xs, keys), implementation=name)
