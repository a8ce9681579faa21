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
    wanted = in_loops(row, 1)
    if row.cell.num_feature_axes > 1:
        # On a CPU a loop around it convolves the inputs, step by step.
        wanted = [wanted[0] + 1, *wanted]
    assert gemms_in_loops(jaxpr.jaxpr) == wanted


@every_cell
def test_a_step_of_training_runs_the_gemms_of_the_table(row):
    every_gradient = jax.grad(functools.partial(score, row), argnums=(0, 1, 2))
    jaxpr = jax.make_jaxpr(every_gradient)(*draw(row))
    assert gemms_in_loops(jaxpr.jaxpr) == in_loops(row, 2)


def in_loops(row, loops):
    return [count for count in row.gemms[:loops]] if row.gemms else []
