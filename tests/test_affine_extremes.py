"""Zeros, infinities and products that overflow, in parallel over time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import scanrnn


def test_a_product_of_factors_that_overflows_leaves_zeros_zero():
    xs = jnp.zeros((1024, 8), jnp.float32).at[-10:].set(1.0)
    init = jnp.zeros(8, jnp.float32)

    def step(h, x):
        h = jnp.float32(1.5) * h + x
        return h, h

    def results(scan):
        def early(xs):
            return scan(step, init, xs)[1][:10].sum()

        return scan(step, init, xs), jax.grad(early)(xs)

    found = results(functools.partial(scanrnn.scan, implementation="associative"))
    wanted = results(lax.scan)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_infinite_and_huge_factors_act_as_in_a_loop():
    def ratio(h, x):
        return (h / x,) * 2

    def product(h, x):
        return (h * x,) * 2

    run = functools.partial(scanrnn.scan, implementation="associative")
    with_zero = jnp.array([1.0, 1.0, 0.0, 1.0, 2.0, 1.0])
    for step, init, xs in (
        (ratio, jnp.ones(()), with_zero),
        (product, jnp.zeros(()), jnp.full(6, 1e200)),
        (product, jnp.zeros(()), jnp.array([1.0, jnp.nan, 1.0])),
    ):
        found, wanted = run(step, init, xs), lax.scan(step, init, xs)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
