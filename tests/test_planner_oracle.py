"""Every step of the table against `lax.scan` in float64, values and gradients."""

import jax
import pytest

import scanrnn
from tests.compare import assert_same, value_and_gradients
from tests.step_table import STEPS, build

POLICIES = ("minimal", "recompute", "chunked", "everything")


@pytest.mark.parametrize("name", STEPS)
def test_scan_equals_lax_scan(name):
    assert_same(build(name), value_and_gradients)


@pytest.mark.parametrize("name", STEPS)
def test_reversed_scan_equals_lax_scan(name):
    assert_same(build(name), value_and_gradients, reverse=True)


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("name", ["ln_lstm", "gru", "with_prng", "nested_scan"])
def test_residual_policy_equals_lax_scan(name, policy):
    options = scanrnn.Options(residuals=policy)
    assert_same(build(name), value_and_gradients, plan=options)
    assert_same(build(name), value_and_gradients, plan=options, reverse=True)


@pytest.mark.parametrize(
    "switch", ["split", "hoist", "merge", "layout", "sink", "defer"]
)
@pytest.mark.parametrize("name", ["lstm_concatenated", "lstm_per_gate", "output_head"])
def test_each_pass_can_be_left_out(name, switch):
    options = scanrnn.Options(**{switch: False})
    assert_same(build(name), value_and_gradients, plan=options)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_chunked_scan_equals_lax_scan(chunk, reverse):
    """Chunks that fit, that leave a rest, and that are longer than the sequence."""
    plan = scanrnn.Options(chunk=chunk)
    assert_same(build("output_head"), value_and_gradients, plan=plan, reverse=reverse)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("name", ["lstm", "output_head", "with_prng", "without_ys"])
def test_short_sequence_equals_lax_scan(name, length):
    step, params, init, xs = build(name)
    xs = jax.tree.map(lambda x: x[:length], xs)
    assert_same((step, params, init, xs), value_and_gradients)


@pytest.mark.parametrize("unroll", [2, 3, True])
def test_unrolled_scan_equals_lax_scan(unroll):
    assert_same(build("ln_lstm"), value_and_gradients, unroll=unroll)
