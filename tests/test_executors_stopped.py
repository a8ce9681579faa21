"""Kernels with slices of which one is missing: the others stop, and all is NaN.

Pallas's interpreter runs one program after the other. So the first one waits for slices
that do not come, and those that come later find that it has stopped.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.gpu import exchange, slice_costs, together
from scanrnn.executors.gpu import triton as _triton
from tests.test_executors_blocks import CELLS, drawn
from tests.test_executors_slices import many_small_cores  # noqa: F401

NAME = pallas_gpu.NAME


@pytest.fixture(autouse=True)
def one_after_the_other(monkeypatch):
    own, program_id = {}, pl.program_id

    def run(view, groups, length, reverse, args):
        own.clear()
        _, last, made = groups
        shapes = [view.form(v).struct() for v in last]
        shapes += [view.form(v).struct(length) for v in made]
        return _triton._called(view, shapes, True, groups, length, reverse, args)

    monkeypatch.setattr(together, "run", run)
    monkeypatch.setattr(exchange, "MOST_READS", 3)

    def known(axis):
        """The interpreter knows a program's place only outside the loop."""
        if axis not in own:
            own[axis] = program_id(axis)
        return own[axis]

    monkeypatch.setattr(pl, "program_id", known)
    # The interpreter has one thread, no atomic operations on one number, and no cache.
    monkeypatch.setattr(exchange, "_load", lambda ref: ref[...])
    monkeypatch.setattr(triton, "debug_barrier", lambda: None)
    for name, f in (("atomic_add", jnp.add), ("atomic_max", jnp.maximum)):
        monkeypatch.setattr(triton, name, functools.partial(changed, f))


def changed(f, ref, place, value):
    """The number that was in a place, which is now `f` of it and a value."""
    was = ref[place]
    ref[place] = f(was, value)
    return was


def assert_all_are_nan(outs):
    for leaf in jax.tree.leaves(outs):
        np.testing.assert_array_equal(leaf, jnp.full_like(leaf, jnp.nan))


@pytest.mark.parametrize(("name", "least"), [("lstm", 0), ("lstm-norm", 2**30)])
def test_results_of_slices_that_stop_are_nan(name, least, monkeypatch):
    """Also if they divide the operands of products."""
    monkeypatch.setattr(slice_costs, "LEAST_SAVING", least)
    params, carry, xs = drawn(CELLS[name], 3, 3, 64)

    def loss(params, carry, xs):
        step = functools.partial(CELLS[name].step, params)
        outs = scanrnn.scan(step, carry, xs, implementation=NAME)
        return sum(map(jnp.sum, jax.tree.leaves(outs))), outs

    run = jax.grad(loss, argnums=(1, 2), has_aux=True)
    assert_all_are_nan(run(params, carry, xs))


def test_what_a_step_chooses_is_nan_if_slices_stop():
    """`relu` of such NaN is zero, and so is a masked one."""
    W, h, xs, mask = jnp.ones((32, 32)), jnp.ones((3, 32)), jnp.ones((4, 3, 32)), 0.0

    def step(h, x):
        z = h @ W + x
        h = jnp.where(z > 0, z, 0)
        return h, jnp.where(mask, jnp.max(z, -1, keepdims=True), x)

    assert_all_are_nan(scanrnn.scan(step, h, xs, implementation=NAME))
