"""Random step functions as kernels of both devices, compared with `lax.scan`."""

import functools

import jax
import pytest
from hypothesis import strategies as st

import scanrnn
from scanrnn.executors import pallas_gpu, pallas_tpu
from tests.compare import assert_same, outputs_of_gradients
from tests.generated import BY_WEIGHTS, ON_A_GPU, materialise, programs
from tests.test_planner_generated import examine

# Shards draw some of the smallest programs alike: of 135 that run, over 100 differ.
EACH, MOST = 45, 100
on_a_tpu = st.tuples(programs(size=6, least=3), st.booleans())
of_a_gpu = programs(size=6, least=3, operations=ON_A_GPU, by_weights=BY_WEIGHTS)
on_a_gpu = st.tuples(of_a_gpu, st.booleans())


def is_for_a_tpu(step, init, xs, reverse):
    """Whether a TPU's rules make a plan whose derivative is the planner's."""
    # The rules of a CPU keep more, which alone can be a reason for a plan.
    plan = scanrnn.plan(step, init, xs, reverse=reverse, machine="tpu v5e")
    return plan.unplanned is None and plan.defer


def is_for_a_gpu(step, init, xs, reverse):
    try:
        scanrnn.plan(step, init, xs, reverse=reverse, implementation=pallas_gpu.NAME)
    except ValueError as refusal:
        assert "cannot run this step: " in str(refusal)
        return False
    return True


def check_until(strategy, shard, size, able, options):
    """Check gradients of drawn steps until `EACH` of them ran; how many did."""
    ran = []

    def check(drawn):
        program, reverse = drawn
        if len(ran) == EACH or drawn in ran:
            return
        make = step, weights, init, xs = materialise(program, jax.random.key(0), size)
        if not able(functools.partial(step, weights), init, xs, reverse):
            return
        assert_same(
            make, outputs_of_gradients, plan=options, reverse=reverse, rtol=1e-7
        )
        ran.append(drawn)

    examine(MOST, shard, strategy, check)
    return len(ran)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(7, 10))
def test_one_hundred_generated_steps_as_kernels_of_a_tpu_equal_lax_scan(shard):
    options = scanrnn.Options(implementation=pallas_tpu.NAME, chunk=2)
    assert check_until(on_a_tpu, shard, 2, is_for_a_tpu, options) == EACH


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(3))
def test_one_hundred_generated_steps_as_kernels_of_a_gpu_equal_lax_scan(shard):
    options = scanrnn.Options(implementation=pallas_gpu.NAME)
    assert check_until(on_a_gpu, shard, 16, is_for_a_gpu, options) == EACH
