"""Random step functions, compared with `lax.scan`: values and all gradients."""

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import scanrnn
from scanrnn.executors import pallas_gpu
from scanrnn.executors.run import ruled
from scanrnn.machines import MACHINES
from tests.compare import assert_same, outputs_alone, outputs_of_gradients
from tests.generated import materialise, programs
from tests.test_planner_transforms import forward_over_reverse

POLICIES = ("minimal", "recompute", "chunked", "everything")
OPTIONS = st.builds(
    scanrnn.Options,
    split=st.booleans(),
    hoist=st.booleans(),
    merge=st.booleans(),
    layout=st.booleans(),
    sink=st.booleans(),
    defer=st.sampled_from([True, True, True, False]),
    features_first=st.sampled_from([None, True, False]),
    residuals=st.sampled_from(POLICIES),
)


def examine(count, shard, strategy, check):
    """Run `check` on `count` drawn examples; the same ones each time."""

    @seed(shard)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(drawn):
        check(drawn)

    run()


def check_gradients(drawn):
    program, options, reverse, transform = drawn
    make = materialise(program, jax.random.key(0))
    assert_same(make, transform, plan=options, reverse=reverse, rtol=1e-7)


def check_second_derivatives(program):
    make = materialise(program, jax.random.key(0))
    assert_same(make, forward_over_reverse, rtol=1e-7)


transforms = st.sampled_from([outputs_of_gradients] * 3 + [outputs_alone])
as_a_user = st.tuples(programs(size=6), st.none(), st.booleans(), transforms)
with_options = st.tuples(programs(size=6), OPTIONS, st.booleans(), transforms)


@pytest.mark.parametrize("shard", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_generated_step_equals_lax_scan(shard):
    examine(50, shard, as_a_user, check_gradients)


@pytest.mark.slow
def test_generated_step_under_any_options_equals_lax_scan():
    examine(40, 0, with_options, check_gradients)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h100", "tpu v5e"])
def test_generated_step_on_a_machine_equals_lax_scan(monkeypatch, machine):
    """The program of the machine is compiled for the machine of the tests.

    Kernels are not: a CPU has no compiler for them.
    """
    monkeypatch.setattr(pallas_gpu, "PROVEN", frozenset())
    monkeypatch.setattr(ruled, "machine_for", lambda platform: MACHINES[machine])
    policies = st.sampled_from(POLICIES)
    options = st.builds(scanrnn.Options, machine=st.just(machine), residuals=policies)
    strategy = st.tuples(programs(size=6), options, st.booleans(), transforms)
    examine(30, 0, strategy, check_gradients)


@pytest.mark.slow
def test_generated_step_has_the_second_derivatives_of_lax_scan():
    examine(15, 0, programs(size=5), check_second_derivatives)


# These sizes take some minutes of one processor, so the tests can run at each change.
@pytest.mark.slow
@pytest.mark.parametrize("shard", range(100, 103))
def test_three_hundred_generated_steps_equal_lax_scan(shard):
    strategy = st.one_of(as_a_user, with_options)
    examine(100, shard, strategy, check_gradients)
