"""Kernels for a TPU that run a part of the batch, on one core or on two."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from benchmarks.programs.linear_attention import delta_rule
from scanrnn.executors import pallas_tpu
from scanrnn.executors.kernels import tiles
from scanrnn.planner.emit import emit
from tests.test_executors_kernels import KINDS, assert_equal_to_lax_scan, lstm

NAME = pallas_tpu.NAME


def test_kernel_takes_a_batch_of_products_in_parts(monkeypatch):
    """The step is a chunk of a delta rule, with a state for each of six sequences."""
    monkeypatch.setattr(tiles, "_MOST", 2**14)
    program = delta_rule(T=3, S=6, C=8, K=16)
    fast = scanrnn.accelerate(program.apply, plan=scanrnn.Options(implementation=NAME))

    def slopes(run):
        def loss(params):
            return jnp.sum(jnp.sin(run(params, program.inputs)))

        return jax.grad(loss)

    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), program.params)
    assert str(jax.make_jaxpr(slopes(fast))(params)).count("grid=(6, 1)") == 2
    both = (jax.jit(slopes(run))(params) for run in (fast, program.apply))
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_kernel_takes_the_derivative_of_a_batch_of_products_in_parts(monkeypatch):
    """Its slope of `tanh` has another primitive since JAX 0.12."""
    monkeypatch.setattr(tiles, "_MOST", 2**10)

    def step(h, x):
        return jnp.tanh(jnp.einsum("bij,bj->bi", x, h)), h

    h, xs = jnp.zeros((6, 16)), jnp.zeros((5, 6, 16, 16))
    plan = scanrnn.plan(step, h, xs, implementation=NAME)
    parts = {name: tiles.part_of(body)[2] for name, body in emit(plan).items()}
    assert min(parts.values()) > 1, parts


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(tiles, "cores_of", lambda machine: 2)
    monkeypatch.setattr(tiles, "_ROWS", 1)


@pytest.mark.parametrize("row", KINDS)
def test_kernel_for_two_cores_equals_lax_scan(row, two_cores):
    """The interpreter runs both halves of the batch one after the other."""
    assert_equal_to_lax_scan(row, reverse=False)


def test_kernel_for_two_cores_cuts_no_matrix(two_cores):
    """There are as many examples as the matrix has rows."""
    with jax.enable_x64(False):
        step, carry, xs = lstm(3, 4, 4, jnp.float32)

        def slope(implementation, carry):
            outs = scanrnn.scan(step, carry, xs, implementation=implementation)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outs))

        got, want = (
            jax.grad(functools.partial(slope, name)) for name in (NAME, "scan")
        )
        assert str(jax.make_jaxpr(got)(carry)).count("grid=(2, ") == 2
        for a, b in zip(got(carry), want(carry), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_kernel_cuts_no_weight_of_other_axes(monkeypatch):
    """There are as many heads as examples, and what is kept differs by the head."""
    monkeypatch.setattr(tiles, "_MOST", 2**8)
    keys = jax.random.split(jax.random.key(0), 4)
    frozen = jnp.array([True, False])[:, None, None]

    def step(S, inputs):
        k, v, q = inputs
        new = 0.9 * S + k[..., :, None] * v[..., None, :]
        S = jnp.where(frozen, S, new)
        return S, jnp.einsum("bnkv,bnk->bnv", S, q)

    xs = tuple(jax.random.normal(key, (3, 2, 2, 8), jnp.float32) for key in keys[:3])
    init = jax.random.normal(keys[3], (2, 2, 8, 8), jnp.float32)
    with jax.enable_x64(False):
        got = scanrnn.scan(step, init, xs, implementation=NAME)
    np.testing.assert_allclose(got[1], jax.lax.scan(step, init, xs)[1], rtol=1e-5)


@pytest.mark.parametrize("mask", ["kept", "added"])
def test_kernel_for_two_cores_keeps_vectors_of_features(mask, two_cores):
    """There are as many examples as features."""
    keys = jax.random.split(jax.random.key(0), 3)
    U = jax.random.normal(keys[0], (4, 4), jnp.float32)
    vector = jnp.arange(4.0, dtype=jnp.float32)

    def step(h, x):
        h = jnp.tanh(h @ U + x + (vector if mask == "added" else 0))
        h = jnp.where(vector > 1, h, 0.0) if mask == "kept" else h
        return h, h

    init, xs = jnp.ones((4, 4), jnp.float32), jax.random.normal(keys[1], (3, 4, 4))
    xs = xs.astype(jnp.float32)
    with jax.enable_x64(False):
        run = functools.partial(scanrnn.scan, step, implementation=NAME)
        assert "grid=(2, " in str(jax.make_jaxpr(run)(init, xs))
        got = run(init, xs)
    np.testing.assert_allclose(got[1], jax.lax.scan(step, init, xs)[1], rtol=1e-5)


@pytest.mark.parametrize(("batch", "parts"), [(16, 2), (8, 1), (17, 1)])
def test_kernel_for_a_tpu_v5p_is_cut_where_each_core_has_a_register(batch, parts):
    step, carry, xs = lstm(3, batch, 8, jnp.float32)
    plan = scanrnn.plan(step, carry, xs, machine="tpu v5p", implementation=NAME)
    found = {tiles.part_of(body)[2] for body in emit(plan).values()}
    assert found == {parts}
