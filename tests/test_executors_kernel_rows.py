"""Half precision in a kernel for a TPU: held in float32, rounded where that counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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


def test_kernel_with_rows_in_float32_is_as_exact_as_lax_scan():
    def loss(rows, xs, implementation):
        whole = functools.partial(step, list(rows))
        ys = scanrnn.scan(whole, xs[0], xs, implementation=implementation)[1]
        return jnp.sum(jnp.sin(ys.astype(jnp.float32)))

    slope = jax.jit(jax.grad(loss), static_argnums=2)
    exact = slope(ROWS.astype(jnp.float32), XS.astype(jnp.float32), "scan")

    def error(implementation):
        found = slope(ROWS, XS, implementation).astype(jnp.float32)
        return float(jnp.mean(jnp.abs(found - exact)))

    assert error(NAME) < error("scan") < 0.1


def of_one_step(f):
    """The value of `f(h, x)` in a kernel, for a carry and an input of bfloat16."""

    def step(h, x):
        return jnp.tanh(h + x), f(h, x)

    plan = scanrnn.plan(step, XS[0], XS, implementation=NAME)
    graph = plan.bodies["for values"].graph
    values = {v: 1 + jnp.abs(numbers(v)) for v in graph.inputs}
    h, x = (values[v].astype(jnp.float32) for v in (*graph.carry, *graph.xs))
    return evaluated(graph, values)[-1], h, x


def test_kernel_rounds_sums_of_half_precision_once():
    got, h, x = of_one_step(lambda h, x: (h + x) + h)
    np.testing.assert_array_equal(got, (h + x + h).astype(jnp.bfloat16))


def test_kernel_rounds_where_the_step_casts():
    def f(h, x):
        wide = h.astype(jnp.float32) + x.astype(jnp.float32)
        return wide.astype(jnp.bfloat16).astype(jnp.float32)

    got, h, x = of_one_step(f)
    np.testing.assert_array_equal(got, (h + x).astype(jnp.bfloat16))


def test_kernel_compares_rounded_values():
    """`h + x` and its rounded copy are equal, as they are in the plan."""
    equal, *_ = of_one_step(lambda h, x: lax.reduce_precision(h + x, 8, 7) == h + x)
    assert equal.all()
