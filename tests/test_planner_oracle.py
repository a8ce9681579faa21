"""Compare every step of the table with `lax.scan` in float64: values and gradients."""

import jax
import pytest

import scanrnn
from tests.compare import assert_same, outputs_of_gradients, value_and_gradients
from tests.step_table import STEPS, build

POLICIES = ("minimal", "recompute", "chunked", "everything")
# Steps that differ from another step only in how their weights are used. This does not
# depend on the direction, so in reverse only the other step is tested.
ALIKE = {
    "lstm": "residual_lstm",
    "mi_lstm": "ln_lstm",
    "lstm_concatenated": "output_head",
    "lstm_sliced": "lstm_per_gate",
    "elman": "gru",
    "krause_mlstm": "gru_reset_before",
}
# Each pass, with steps that it changes.
PASSES = {
    "split": ["lstm_concatenated", "output_head"],
    "hoist": ["lstm_concatenated", "lstm_per_gate", "output_head"],
    "merge": ["lstm_per_gate"],
    "layout": ["lstm_concatenated", "lstm_per_gate", "output_head"],
    "sink": ["residual_lstm", "output_head"],
    "defer": ["lstm_concatenated", "lstm_per_gate", "output_head"],
}


@pytest.mark.parametrize("name", STEPS)
def test_scan_equals_lax_scan(name):
    assert_same(build(name), value_and_gradients)


def test_reversed_scan_is_tested_on_every_step_or_on_one_alike():
    assert set(ALIKE) < set(STEPS)
    assert set(ALIKE.values()) <= set(STEPS) - set(ALIKE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STEPS if name not in ALIKE])
def test_reversed_scan_equals_lax_scan(name):
    assert_same(build(name), value_and_gradients, reverse=True)


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("name", ["ln_lstm", "gru", "with_prng", "nested_scan"])
def test_residual_policy_equals_lax_scan(name, policy):
    options = scanrnn.Options(residuals=policy)
    # Residuals matter only for gradients: other scans are the same for all policies.
    assert_same(build(name), outputs_of_gradients, plan=options)
    assert_same(build(name), outputs_of_gradients, plan=options, reverse=True)


def test_every_pass_is_left_out_of_a_step():
    defaults = vars(scanrnn.Options()).items()
    assert {name for name, value in defaults if value is True} == set(PASSES)


@pytest.mark.parametrize(
    ("switch", "name"), [(switch, name) for switch in PASSES for name in PASSES[switch]]
)
def test_each_pass_can_be_left_out(switch, name):
    options = scanrnn.Options(**{switch: False})
    assert_same(build(name), value_and_gradients, plan=options)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_chunked_scan_equals_lax_scan(chunk, reverse):
    """Chunks divide the sequence, leave a rest, or are longer than the sequence."""
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
