"""`scanrnn.plans`: what the loops in a function, a layer or a model run."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx

import scanrnn
from scanrnn import _plans

XS = jnp.ones((4, 20, 32), "float32")  # [B, T, D]


def step(h, x):
    h = jnp.tanh(x @ jnp.ones((32, 64)) + h @ jnp.ones((64, 64)))
    return h, h


def over_time(scan, xs, **options):
    zeros = jnp.zeros((xs.shape[0], 64))
    return scan(step, zeros, xs.swapaxes(0, 1), **options)[1]


def names(found):
    return [plan.executor.name for plan in found]


def test_plans_has_one_plan_for_each_layer():
    rnn = scanrnn.nnx.LSTM(32, 64, num_layers=2, rngs=nnx.Rngs(0))
    found = scanrnn.plans(rnn, XS)
    assert names(found) == ["planned", "planned"]
    assert [plan.length for plan in found] == [20, 20]


def test_plans_are_those_of_plan():
    zeros = jnp.zeros((4, 64))
    alone = scanrnn.plan(step, zeros, XS.swapaxes(0, 1))
    (found,) = scanrnn.plans(over_time, scanrnn.scan, XS)
    assert str(found) == str(alone)


def test_plans_sees_a_function_that_was_compiled_before():
    @jax.jit
    def run(xs):
        return over_time(scanrnn.scan, xs)

    run(XS)
    assert names(scanrnn.plans(run, XS)) == ["planned"]
    assert names(scanrnn.plans(run, XS)) == ["planned"]


def test_plans_sees_the_loop_of_a_gradient_once():
    train = jax.grad(lambda xs: over_time(scanrnn.scan, xs).sum())
    assert names(scanrnn.plans(train, XS)) == ["planned"]


def test_plans_sees_loops_under_accelerate():
    model = nn.RNN(nn.OptimizedLSTMCell(64))
    variables = model.init(jax.random.key(0), XS)
    fast = jax.jit(scanrnn.accelerate(model.apply))
    assert names(scanrnn.plans(fast, variables, XS)) == ["planned"]


def test_plans_needs_no_arrays():
    described = jax.ShapeDtypeStruct(XS.shape, XS.dtype)
    (found,) = scanrnn.plans(over_time, scanrnn.scan, xs=described)
    assert found.length == 20


@pytest.mark.parametrize("implementation", ["scan", "planned"])
def test_plans_has_the_executor_that_is_asked_for(implementation):
    (found,) = scanrnn.plans(
        lambda xs: over_time(scanrnn.scan, xs, implementation=implementation), XS
    )
    assert found.executor.name == implementation


def test_plans_has_the_loop_in_a_loop_once():
    def outer(total, xs):
        return total + over_time(scanrnn.scan, xs).sum(), None

    def run(xs):
        return scanrnn.scan(outer, 0.0, xs, implementation="scan")

    found = scanrnn.plans(run, jnp.stack([XS] * 3))
    assert names(found) == ["planned", "scan"]
    assert found[1].reason == "implementation='scan'"


def test_plans_leaves_a_model_as_it_is():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.rnn = scanrnn.nnx.GRU(32, 64, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, xs):
            return self.dropout(self.rnn(xs))

    model = Model(nnx.Rngs(0))
    before = jax.tree.leaves(nnx.state(model, nnx.RngCount))
    assert names(scanrnn.plans(model, XS)) == ["planned"]
    assert jax.tree.leaves(nnx.state(model, nnx.RngCount)) == before


def test_plans_of_a_function_without_loops_is_an_error():
    with pytest.raises(ValueError, match=r"plans: fn runs no loop by scanrnn.*acceler"):
        scanrnn.plans(lambda xs: over_time(jax.lax.scan, xs), XS)


def test_plans_of_what_is_no_function_is_an_error():
    with pytest.raises(TypeError, match=r"plans: fn must be callable, got int; .*plan"):
        scanrnn.plans(3, XS)


def test_plans_keeps_nothing():
    scanrnn.plans(over_time, scanrnn.scan, XS)
    before = len(_plans._of_structures)
    scanrnn.plans(over_time, scanrnn.scan, XS)
    assert len(_plans._of_structures) == before


def test_plans_without_jit_is_an_error():
    with jax.disable_jit(), pytest.raises(ValueError, match="plans: jax.disable_jit"):
        scanrnn.plans(over_time, scanrnn.scan, XS)
