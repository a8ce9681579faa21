"""Weights of one row, which a kernel for a TPU holds in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import scanrnn
from scanrnn.executors import pallas_tpu
from scanrnn.executors.kernels.forms import weights_of
from scanrnn.executors.kernels.step import step as evaluated
from tests.test_executors_kernels import numbers

NAME = pallas_tpu.NAME
ROWS = jax.random.normal(jax.random.key(0), (4, 1, 128), jnp.bfloat16)
XS = jax.random.normal(jax.random.key(1), (5, 8, 128), jnp.bfloat16)


def step(rows, h, x):
    """A multiplicative integration; the last row is neither added nor multiplied."""
    a, b, c, d = rows
    h = jnp.tanh(a * x * h + b * h + (c - jnp.maximum(x, d)))
    return h, h


def test_kernel_holds_rows_that_are_added_or_multiplied_in_float32():
    whole = functools.partial(step, list(ROWS))
    plan = scanrnn.plan(whole, XS[0], XS, implementation=NAME)
    graph = plan.bodies["for values"].graph
    found, _ = weights_of(graph)
    assert sorted(form.wide for form in found.values()) == [False, True, True, True]
    values = {v: numbers(v) for v in graph.inputs}
    held = {v: form.value(form.stored(values[v])) for v, form in found.items()}
    assert {str(a.dtype) for a in held.values()} == {"float32", "bfloat16"}
    both = evaluated(graph, values), evaluated(graph, values | held)
    for wanted, got in zip(*both, strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_array_equal(got, wanted)


def test_kernel_with_rows_in_float32_equals_lax_scan():
    def loss(rows, implementation):
        whole = functools.partial(step, list(rows))
        ys = scanrnn.scan(whole, XS[0], XS, implementation=implementation)[1]
        return jnp.sum(jnp.sin(ys.astype(jnp.float32)))

    slope = jax.jit(jax.grad(loss), static_argnums=1)
    both = (slope(ROWS, name).astype(np.float32) for name in (NAME, "scan"))
    np.testing.assert_allclose(*both, rtol=0.03, atol=0.03)
