"""What is found of loops over time, and what is run of it, against `lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import scanrnn
from scanrnn.executors import associative
from scanrnn.planner import affine
from tests.affine_table import LOOPS
from tests.cell_table import CELLS, draw
from tests.compare import assert_same, value_and_gradients

PARALLEL = scanrnn.Options(implementation="associative")


def kinds(graph):
    found = {k: group.kind for group in affine.groups(graph) for k in group.leaves}
    return tuple(found[k] for k in range(len(graph.carry)))


def found_in(step, init, xs):
    plan = scanrnn.plan(step, init, xs)
    graph = plan.stages.loop
    return plan, dict(zip(graph.carry, kinds(graph), strict=True))


@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_found_to_be_what_it_is(name):
    wanted, step, init, xs = LOOPS[name]()
    plan, found = found_in(step, init, xs)
    # A carry that never changes is a weight to the planner.
    told = iter(found.values())
    leaves = range(len(wanted))
    assert wanted == tuple(
        "constant" if i in plan.invariant else next(told) for i in leaves
    )
    for kind in found.values():
        assert kind in str(plan)


def as_made(name, reverse):
    _, step, init, xs = LOOPS[name]()
    return (lambda _, carry, x: step(carry, x)), {}, init, xs


QUICK = {"advantages_purejaxrl", "biquad", "longest_path", "bookkeeping"}
RUN = [n for n, made in LOOPS.items() if {*made().kinds} != {"sequential"}]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RUN]
)
def test_loop_in_parallel_equals_lax_scan(name):
    for reverse in (False, True):
        make = as_made(name, reverse)
        assert_same(make, value_and_gradients, plan=PARALLEL, reverse=reverse)
