"""Small factors are multiplied first: the same values, and fewer passes over arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn.planner.ir.graph import Env
from scanrnn.planner.passes.factors import small_factors_first
from scanrnn.planner.trace import trace
from tests.step_table import normalise

B, F = 4, 6


def column_in_a_sum(p, h, x):
    return h, jnp.sum((h * x[:, :1]) * x, axis=-1)


def negative_sum(p, h, x):
    return h, jnp.sum(-(p["c"] * (h * 2.0)), axis=-1)


def columns_and_numbers(p, h, x):
    return ((h * p["c"]) * 2.0) * x[:, 1:2], h[:, 0]


def spread_column(p, h, x):
    wide = jnp.broadcast_to(jnp.sum(x, axis=-1)[:, None], (B, F))
    return (3.0 * h) * wide, h[:, 0]


def gradient_of_a_norm(p, h, x):
    _, pull = jax.vjp(normalise, h)
    return pull(x * p["c"])[0], h[:, 0]


SIMPLER = (column_in_a_sum, negative_sum, columns_and_numbers, spread_column)
SIMPLER += (gradient_of_a_norm,)


def row_in_a_sum(p, h, x):
    """A row differs along the axis that is summed."""
    return h, jnp.sum(h * p["r"], axis=-1)


def sum_over_the_batch(p, h, x):
    return h, jnp.sum(h * x[:, :1], axis=0) + h[0]


def one_column(p, h, x):
    return h * x[:, :1], h[:, 0]


def read_twice(p, h, x):
    """The product is needed as it is, so its sum saves nothing."""
    z = h * x[:, :1]
    return z, jnp.sum(z, axis=-1)


def half_precision(p, h, x):
    """Other products would be rounded."""
    z = jnp.bfloat16(h) * jnp.bfloat16(x[:, :1]) * jnp.bfloat16(2.0)
    return z.astype(h.dtype), h[:, 0]


AS_IT_IS = (row_in_a_sum, sum_over_the_batch, one_column, read_twice, half_precision)


def arrays():
    keys = jax.random.split(jax.random.key(0), 4)
    draw = jax.random.normal
    params = {"c": draw(keys[0], (B, 1)), "r": draw(keys[1], (1, F))}
    return params, draw(keys[2], (B, F)), draw(keys[3], (3, B, F))


def graph_of(step):
    params, h, xs = arrays()
    return trace(functools.partial(step, params), h, xs, None).graph


def run(graph):
    """The outputs of a graph for random inputs."""
    keys = jax.random.split(jax.random.key(1), len(graph.inputs))
    pairs = zip(graph.inputs, keys, strict=True)
    env = Env((), {v: jax.random.normal(k, v.aval.shape) for v, k in pairs})
    env.run(graph.eqns)
    return [env.read(v) for v in graph.outs]


def passes(graph):
    """The products and changes of sign that make whole arrays."""
    made = (e for e in graph.eqns if e.primitive.name in ("mul", "neg"))
    return sum(e.outvars[0].aval.shape == (B, F) for e in made)


@pytest.mark.parametrize("step", SIMPLER)
def test_small_factors_first_takes_fewer_passes(step):
    graph = graph_of(step)
    simpler, constants = small_factors_first(graph)
    assert not constants
    assert passes(simpler) < passes(graph)
    for wanted, got in zip(run(graph), run(simpler), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step", AS_IT_IS)
def test_small_factors_first_leaves_what_gains_nothing(step):
    graph = graph_of(step)
    simpler, _ = small_factors_first(graph)
    assert [str(e.primitive) for e in simpler.eqns] == [
        str(e.primitive) for e in graph.eqns
    ]


def test_kernel_of_a_tpu_multiplies_small_factors_first():
    params, h, xs = jax.tree.map(jnp.float32, arrays())
    W = jnp.ones((F, F), jnp.float32)

    def step(h, x):
        h = jnp.tanh(normalise(h @ W) * params["r"] + x)
        return h, h

    plans = {
        name: scanrnn.plan(step, h, xs, machine="tpu v5e", implementation=name)
        for name in ("pallas_tpu", "planned")
    }
    counts = {
        name: passes(plan.bodies["in reverse"].graph) for name, plan in plans.items()
    }
    assert counts["pallas_tpu"] < counts["planned"]
