"""Matrix products of a loop with features first: correct, and only where it pays."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from scanrnn.executors import _xla, planned
from scanrnn.machines import MACHINES
from tests.compare import assert_same, training_jaxpr, value_and_gradients
from tests.jaxprs import gemms, loops
from tests.step_table import build
from tests.test_planner_transforms import TRANSFORMS
from tests.tiers import one_in

NAMES = ["lstm", "ln_lstm", "gru", "gru_reset_before", "output_head", "mi_lstm"]


@pytest.fixture
def always(monkeypatch):
    """Put features first for matrices of any size."""
    rules = dataclasses.replace(
        _xla.CPU,
        features_first=1,
        features_first_side=1,
        features_first_batch=(1, 2**31),
    )
    monkeypatch.setattr(_xla, "CPU", rules)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", one_in(2, NAMES))
def test_features_first_equals_lax_scan(always, name, reverse):
    assert_same(build(name), value_and_gradients, reverse=reverse)


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
def test_features_first_equals_lax_scan_under(always, transform):
    assert_same(build("lstm"), transform)


def test_features_first_turns_the_products_of_both_loops(always):
    """The matrix is on the left, and the batch is the last axis of the result."""
    jaxpr = training_jaxpr(scanrnn.scan, build("lstm"))
    bodies = [loop.params["jaxpr"].jaxpr for loop in loops(jaxpr)]
    found = [eqn for body in bodies for eqn in gemms(body)]
    assert len(found) == 2
    for eqn in found:
        assert eqn.params["dimension_numbers"][0] == ((1,), (0,))
        assert eqn.outvars[0].aval.shape[-1] == 3


def plan_of(batch, features, **options):
    cell = scanrnn.cells.lstm()
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), features, features))
    xs = jax.ShapeDtypeStruct((30, batch, features), "float32")
    carry = jax.eval_shape(cell.initial_carry, params, xs.update(shape=xs.shape[1:]))

    def step(carry, x):
        params, inner = carry
        inner, y = cell.step(params, inner, x)
        return (params, inner), y

    return scanrnn.plan(step, (params, carry), xs, **options)


def test_features_come_first_where_that_was_measured_to_pay(monkeypatch):
    sizes = [(32, 1024), (48, 768), (32, 512), (128, 1024), (2, 1024), (8, 256)]
    cpu = dataclasses.replace(MACHINES["cpu"], units=frozenset({"avx2", "avx512f"}))
    turned = {}
    for size in sizes:
        plan = plan_of(*size, machine=cpu)
        turned[size] = [len(body.transposed) for body in plan.bodies.values()]
    paying = {size for size, counts in turned.items() if any(counts)}
    assert paying == {(32, 1024), (48, 768)}
    # The reverse loop reads the original matrix from the left, without a transpose.
    assert all(turned[size][:2] == [1, 1] for size in paying)
    for machine, told in ((cpu, True), ("h100", False)):
        text = plan_of(32, 1024, machine=machine).describe(long=True)
        assert ("with the features first" in text) is told


def test_machine_without_avx512_has_features_first_for_smaller_matrices():
    cpu = MACHINES["cpu"]
    sides = [
        planned.rules(dataclasses.replace(cpu, units=units)).features_first_side
        for units in (frozenset({"avx2"}), frozenset({"avx2", "avx512f"}))
    ]
    assert sides == [512, 768]


def test_half_precision_is_left_as_it_is(always):
    step, params, init, xs = build("lstm")
    halves = functools.partial(jax.tree.map, lambda a: a.astype(jnp.bfloat16))
    f = functools.partial(step, halves(params))
    plan = scanrnn.plan(f, halves(init), halves(xs))
    assert not any(body.transposed for body in plan.bodies.values())
