"""Values that a step computes twice, and what a reverse loop of a kernel reads then."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import scanrnn
from scanrnn.executors import pallas_tpu
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.passes.equal import merged


def names(graph):
    return [eqn.primitive.name for eqn in graph.eqns]


def test_equal_equations_of_a_step_are_computed_once():
    def step(h, x):
        a, b = jnp.tanh(x) + h, jnp.tanh(x) + h
        return a * b, (2.0 * x, 3.0 * x)

    one = jnp.ones(2)
    graph = Graph.of(jax.make_jaxpr(step)(one, one).jaxpr, weights=0, carry=1)
    assert names(graph) == ["tanh", "add", "tanh", "add", "mul", "mul", "mul"]
    assert names(merged(graph)) == ["tanh", "add", "mul", "mul", "mul"]


def test_reverse_kernel_reads_the_gates_and_does_not_compute_them():
    """One row of four gates has as many bytes as a row of each gate's function."""
    cell = scanrnn.cells.lstm(integration="multiplicative")
    params = cell.init(jax.random.key(0), 8, 16)
    xs = jnp.ones((4, 2, 8))
    step, carry = (
        functools.partial(cell.step, params),
        cell.initial_carry(params, xs[0]),
    )
    plan = scanrnn.plan(step, carry, xs, implementation=pallas_tpu.NAME)
    body = plan.bodies["in reverse"]
    assert names(body.graph).count("logistic") == 0
    assert names(body.graph).count("tanh") == 1


def test_splits_of_one_value_of_which_each_uses_another_part_become_one():
    def step(h, x):
        first, _ = jnp.split(x, 2)
        _, second = jnp.split(x, 2)
        return jnp.tanh(h + first * second), h

    init, xs = jnp.ones(2), jnp.arange(12.0).reshape(3, 4)
    plan = scanrnn.plan(step, init, xs)
    assert names(plan.stages.graph).count("split") == 1
    got = scanrnn.scan(step, init, xs, implementation="planned")
    chex.assert_trees_all_close(got, lax.scan(step, init, xs))


def test_primitives_that_only_share_a_name_are_two():
    one, two = Primitive("mine"), Primitive("mine")
    for primitive in (one, two):
        primitive.def_abstract_eval(lambda x: x)

    def step(h, x):
        return h + one.bind(x) - two.bind(x), None

    ones = jnp.ones(2)
    graph = Graph.of(jax.make_jaxpr(step)(ones, ones).jaxpr, weights=0, carry=1)
    assert names(merged(graph)).count("mine") == 2


@pytest.mark.parametrize(
    ("one", "two"),
    [(0.0, -0.0), (np.bool_(True), np.int32(1)), (True, 1), ((0.0,), (-0.0,))],
)
def test_parameters_that_python_holds_for_equal_are_two(one, two):
    scaled = Primitive("scaled")
    scaled.def_abstract_eval(lambda x, scale: x)

    def step(h, x):
        return h + scaled.bind(x, scale=one) - scaled.bind(x, scale=two), None

    ones = jnp.ones(2)
    graph = Graph.of(jax.make_jaxpr(step)(ones, ones).jaxpr, weights=0, carry=1)
    assert names(merged(graph)).count("scaled") == 2
