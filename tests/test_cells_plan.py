"""The plans of cells: operations are counted, nothing is timed."""

import functools

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from tests.cell_table import EVERY, ONE_ROW_EACH, draw
from tests.jaxprs import gemms_in_loops

every_cell = pytest.mark.parametrize("row", EVERY)
one_of_each = pytest.mark.parametrize("row", ONE_ROW_EACH)


def score(row, params, xs, carry):
    (last, ys) = scanrnn.scan(functools.partial(row.cell.step, params), carry, xs)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((last, ys)))


@one_of_each
def test_a_forward_step_runs_the_gemms_of_the_table(row):
    jaxpr = jax.make_jaxpr(functools.partial(score, row))(*draw(row))
    assert gemms_in_loops(jaxpr.jaxpr) == in_loops(row, 1)


@every_cell
def test_a_step_of_training_runs_the_gemms_of_the_table(row):
    every_gradient = jax.grad(functools.partial(score, row), argnums=(0, 1, 2))
    jaxpr = jax.make_jaxpr(every_gradient)(*draw(row))
    assert gemms_in_loops(jaxpr.jaxpr) == in_loops(row, 2)


def in_loops(row, loops):
    return [count for count in row.gemms[:loops]] if row.gemms else []


@pytest.mark.parametrize("image, runs", [(16, 1), (1, 20)])
def test_a_cpu_convolves_large_images_step_by_step(image, runs):
    """The kernels are larger than what a step makes of one pixel."""
    kernel = jnp.ones((1, 1, 16, 16))
    numbers = ("NHWC", "HWIO", "NHWC")

    def step(h, x):
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=numbers
        )
        return jnp.tanh(0.9 * h + x), h

    xs = jnp.ones((20, 1, image, image, 16))
    plan = scanrnn.plan(step, xs[0], xs)
    assert (plan.value_chunk or plan.length) == runs
    parallel = scanrnn.plan(step, xs[0], xs, implementation="associative")
    assert parallel.value_chunk is None
