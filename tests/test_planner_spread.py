"""Rows that a step spreads along two axes of one value are copied on a CPU."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import _xla
from scanrnn.planner.passes.spread import spread_rows
from scanrnn.planner.trace import trace
from tests.compare import assert_same, value_and_gradients

T, B, N = 5, 2, 4


def covariance(params, S, x):
    return params["a"] * S + x[:, :, None] * x[:, None, :], S.sum(-1)


def with_norm(params, S, x):
    centred = x - x.mean(-1, keepdims=True)
    return params["a"] * S - (x[..., None] + S) * centred[:, None], S[:, 0]


def fast_weights(params, S, x):
    read = jnp.einsum("bi,bij->bj", x, S)
    error = params["a"] * (read + x)
    return S - jnp.einsum("bi,bj->bij", x, error), read


def turned(params, S, x):
    both = jnp.expand_dims(x, 1) - jnp.expand_dims(x, 2)
    return params["a"] * S + jnp.transpose(both * x[:, :, None], (0, 2, 1)), S[:, 0]


SPREAD = (covariance, with_norm, fast_weights, turned)


def outer_product(params, S, x):
    return params["a"] * S + x[:, :, None] * jnp.ones((1, 1, N)), S.sum(-1)


def of_a_function(params, S, x):
    """XLA keeps the values of `tanh`, so only one slice is in the loop over S."""
    return params["a"] * S + x[:, :, None] * jnp.tanh(x)[:, None], S.sum(-1)


def one_row(params, S, x):
    """The axis of size 1 is nowhere."""
    return params["a"] * S + x[:1, :, None] * x[:1, :, None], S.sum(-1)


def made():
    keys = jax.random.split(jax.random.key(0), 2)
    S, xs = (
        jax.random.normal(key, shape, jnp.float64)
        for key, shape in zip(keys, ((B, N, N), (T, B, N)), strict=True)
    )
    return {"a": jnp.asarray(0.9, jnp.float64)}, xs, S


@pytest.fixture
def copies_small_rows(monkeypatch):
    monkeypatch.setattr(_xla, "CPU", dataclasses.replace(_xla.CPU, spreads=1))
    rules = _xla._on_cpu
    monkeypatch.setattr(
        _xla, "_on_cpu", lambda m: dataclasses.replace(rules(m), spreads=1)
    )


def rows_of(step, least=1):
    params, xs, S = made()
    graph = trace(functools.partial(step, params), S, xs, None).graph
    return [v.aval.shape for v in spread_rows(graph, least)]


@pytest.mark.parametrize("step", SPREAD)
def test_spread_rows_finds_a_row_along_two_axes(step):
    assert rows_of(step) == [(B, N)]
    assert not rows_of(step, least=B * N * N + 1)


@pytest.mark.parametrize("step", [outer_product, of_a_function, one_row])
def test_spread_rows_leaves_a_row_along_one_axis(step):
    assert not rows_of(step)


@pytest.mark.usefixtures("copies_small_rows")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("step", SPREAD)
def test_step_with_copied_rows_equals_lax_scan(step, reverse):
    params, xs, S = made()
    plan = scanrnn.plan(functools.partial(step, params), S, xs)
    assert "copies of the rows" in plan.describe(long=True)
    make = step, params, S, xs
    assert_same(make, value_and_gradients, plan=scanrnn.Options(), reverse=reverse)


@pytest.mark.slow
@pytest.mark.usefixtures("copies_small_rows")
def test_step_with_copied_rows_is_transformed_as_lax_scan():
    params, xs, S = made()

    def loss(scan, S, xs):
        final, ys = scan(functools.partial(covariance, params), S, xs)
        return jnp.sum(jnp.sin(final)) + jnp.sum(ys**2)

    both = jnp.stack([S, 2 * S]), jnp.stack([xs, -xs])
    transforms = {
        "vmap": lambda f: jax.vmap(f)(*both),
        "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1)))(*both),
        "of one": lambda f: jax.vmap(f, (0, None))(both[0], xs),
        "hessian": lambda f: jax.hessian(f, 1)(S, xs),
        "jvp": lambda f: jax.jvp(f, (S, xs), (S, xs)),
    }
    for name, transform in transforms.items():
        got, want = (
            transform(functools.partial(loss, scan))
            for scan in (scanrnn.scan, lax.scan)
        )
        chex.assert_trees_all_close(got, want, rtol=1e-10, custom_message=name)


@pytest.mark.usefixtures("copies_small_rows")
def test_step_with_copied_rows_is_exported():
    params, xs, S = made()
    run = jax.jit(
        functools.partial(scanrnn.scan, functools.partial(covariance, params))
    )
    exported = jax.export.deserialize(jax.export.export(run)(S, xs).serialize())
    chex.assert_trees_all_close(exported.call(S, xs), run(S, xs))
