"""Compare advice with numbers by hand, and with relations between sizes."""

import dataclasses
import re

import jax.numpy as jnp
import pytest

import scanrnn
from scanrnn import cells
from scanrnn.machines import MACHINES


def advise(cell=None, T=64, B=64, D=256, H=512, dtype="float32", machine="h100"):
    return scanrnn.advise(
        cell or cells.lstm(),
        steps=T,
        batch=B,
        in_features=D,
        hidden_features=H,
        dtype=dtype,
        machine=machine,
    )


@pytest.mark.parametrize("cell, gates", [(cells.lstm(), 4), (cells.gru(), 3)])
def test_operations_are_those_by_hand(cell, gates):
    # The forward products, and two backward products of the same size for each.
    T, B, D, H = 10, 3, 70, 50
    by_hand = 3 * 2 * T * B * gates * H * (D + H)
    assert advise(cell, T, B, D, H).cost.flops == by_hand


def test_operations_of_a_kernel_count_too():
    T, B, H = 10, 3, 512
    advice = advise(cells.lstm(), T, B, H, H)
    assert advice.plan.executor.name == "pallas_gpu"
    assert advice.cost.flops == 3 * 2 * T * B * 4 * H * (H + H)


def test_bytes_are_at_least_those_of_weights_and_rows():
    T, B, D, H = 20, 8, 256, 256
    weights, rows = 4 * H * (D + H), T * B * (D + 4 * H)
    moved = advise(None, T, B, D, H).cost.moved
    assert 4 * (weights + rows) < moved < 40 * 4 * (weights + rows)


@pytest.mark.parametrize("machine", ["cpu", "h100", "tpu v5e"])
def test_advice_has_the_estimate_of_its_plan(machine):
    advice = advise(T=8, dtype="bfloat16", machine=machine)
    found = {c.name: c.seconds for c in advice.plan.candidates if c.refusal is None}
    least = min(found.values())
    assert advice.cost.seconds == found[advice.plan.executor.name] == least
    told = f"{1e3 * advice.cost.seconds:.3g} ms"
    assert f"planned {told}" in str(advice.plan) and f"estimate {told}" in str(advice)


@pytest.mark.parametrize(
    "machine, sizes, bound",
    [
        ("h100", {"B": 8, "H": 256}, "dispatch"),
        ("cpu", {"B": 128, "H": 1024, "D": 1024}, "arithmetic"),
        ("cpu", {"B": 1, "H": 4096, "D": 64}, "memory"),
    ],
)
def test_what_bounds_a_layer_is_found(machine, sizes, bound):
    advice = advise(machine=machine, **sizes)
    assert advice.cost.bound == bound
    parts = (advice.cost.arithmetic, advice.cost.memory, advice.cost.dispatch)
    assert advice.cost.seconds == pytest.approx(sum(parts))


@pytest.mark.parametrize(
    "machine, dtype, sizes, words",
    [
        (
            "h100",
            "bfloat16",
            {"B": 20},
            ["B=20 is not a multiple of 8", "less than 64"],
        ),
        ("h100", "float32", {"H": 1002}, ["H=1002 is not a multiple of 4"]),
        ("tpu v5e", "bfloat16", {"H": 500}, ["H=500 is not a multiple of 128"]),
        ("cpu", "float32", {"D": 100}, ["D=100 is not a multiple of 16"]),
        ("cpu", "float32", {}, []),
        ("h100", "bfloat16", {"B": 136}, ["B=136 is not a multiple of 64"]),
        ("h100", "bfloat16", {"B": 248, "H": 1000}, []),
        ("tpu v5e", "bfloat16", {"B": 136}, []),
    ],
)
def test_sizes_that_do_not_fit_are_named(machine, dtype, sizes, words):
    found = advise(machine=machine, dtype=dtype, **sizes).misaligned
    assert len(found) == len(words)
    for text, word in zip(found, words, strict=True):
        assert word in text


def test_cost_is_that_by_which_the_executor_was_chosen():
    advice = advise(cells.mlstm(heads=4), T=256)
    assert advice.plan.executor.name != "planned"
    assert advice.cost.seconds == min(c.seconds for c in advice.plan.candidates)


def test_changes_are_sorted_and_each_is_a_gain():
    for machine in MACHINES:
        gains = [c.gain for c in advise(B=20, H=500, machine=machine).changes]
        assert gains == sorted(gains, reverse=True) and all(g > 1.05 for g in gains)


def test_a_larger_batch_is_advised_where_a_step_waits_to_be_started():
    advice = advise(B=8)
    (change,) = [c for c in advice.changes if "batch of 16" in c.what]
    # Twice the rows in nearly the same time: nearly twice the work.
    assert 1.9 < change.gain <= 2.0
    other = advise(B=16)
    rate = 2 * advice.cost.seconds / other.cost.seconds
    assert change.gain == pytest.approx(rate)


def test_layers_side_by_side_are_advised_where_a_step_waits_to_be_started():
    """Two layers share the waiting time: nearly twice the work in the same time."""
    found = {c.what: c.gain for c in advise(B=8, H=128, D=128, machine="a100").changes}
    (gain,) = [gain for what, gain in found.items() if "side by side" in what]
    assert 1.9 < gain <= 2.0
    for sizes in ({"machine": "cpu"}, {"B": 2048, "H": 4096, "D": 4096}):
        assert "side by side" not in str(advise(**sizes))


@pytest.mark.parametrize("machine", ["a100", "v100"])
def test_longer_sequences_are_advised_where_they_are_very_short(machine):
    """The weights are read once for more steps."""
    changes = advise(T=1, B=8, H=1024, dtype="float16", machine=machine).changes
    (gain,) = [c.gain for c in changes if "2 steps in place of 1" in c.what]
    assert 1.1 < gain <= 2.0


def test_longer_sequences_are_no_advice_where_every_step_costs_the_same():
    assert all("steps in place" not in c.what for c in advise(T=256).changes)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({}, "these sizes fit"),
        ({"dtype": "float32"}, "it needs float16, not float32"),
        ({"dtype": "bfloat16"}, "it needs float16, not bfloat16"),
        ({"H": 500}, "H=500 is not a multiple of 32"),
        ({"H": 64}, "these sizes fit"),
        *(
            (
                {"H": H},
                f"H={H} is a multiple of {power}; one of a larger power of two, up to "
                "256, is better",
            )
            for H, power in ((96, 32), (192, 64), (288, 32), (640, 128))
        ),
        ({"H": 2048}, "H=2048 is more than 1024"),
        ({"B": 20}, "B=20 is not a multiple of 8"),
        ({"B": 24}, "these sizes fit"),
        ({"B": 48}, "these sizes fit"),
        *(
            (
                {"B": B},
                f"B={B} is a multiple of 8; {passes} may need one of a larger power of "
                "two",
            )
            for B, passes in ((40, "the backward pass"), (104, "both passes"))
        ),
    ],
)
def test_persistent_mode_of_cudnn_has_its_own_rules(sizes, words):
    advice = advise(**{"dtype": "float16", "T": 4} | sizes)
    assert advice.persistent == words and words in str(advice)


def test_persistent_mode_is_for_gpus_of_nvidia_alone():
    assert advise(T=4, machine="tpu v5e").persistent == ""


def largest(advice):
    """The largest power of two that an advice says fits a kernel, or None."""
    found = re.search(r"H fits up to (\d+)", advice.kernel)
    return found and int(found[1])


@pytest.mark.parametrize(
    ("machine", "dtype", "room"),
    [
        # Four matrices of a TPU's LSTM lie in its fast memory, less what Mosaic needs.
        ("tpu v5e", "bfloat16", lambda H: 4 * H**2 * 2 < 120 * 2**20),
        # A program of a GPU has at least 16 features of each gate, in 144 KB.
        ("h100", "bfloat16", lambda H: 4 * 16 * H * 2 <= 144 * 2**10),
        ("h100", "float32", lambda H: 4 * 16 * H * 4 <= 144 * 2**10),
    ],
)
def test_kernel_takes_the_features_that_its_memory_holds(machine, dtype, room):
    sizes = {"T": 4, "B": 16, "machine": machine, "dtype": dtype}
    most = largest(advise(H=64, **sizes))
    assert room(most) and not room(2 * most)
    small, large = (advise(H=H, **sizes) for H in (most, 2 * most))
    assert "these sizes fit; " in small.kernel and "not these sizes: " in large.kernel
    assert largest(small) == largest(large) == most
    when = "if the estimate" if machine == "h100" else "only if you ask for it"
    assert small.kernel in str(small) and when in small.kernel


def test_kernel_says_where_it_keeps_the_weights():
    told = advise(T=4, H=64, machine="tpu v5e").kernel
    assert 'implementation="pallas_tpu"' in told and "stay in fast memory" in told
    told = advise(T=4, H=64, machine="h100").kernel
    assert 'implementation="pallas_gpu"' in told and "weights stay in registers" in told


def test_kernel_that_refuses_sizes_says_which_it_takes():
    told = advise(T=4, H=500, dtype="bfloat16", machine="h100").kernel
    assert "500 features are no multiple of 16" in told and "H fits up to 1024" in told


def test_kernel_of_a_step_without_matrices_has_no_largest_size():
    advice = advise(cells.indrnn(), T=4, machine="h100")
    assert "these sizes fit" in advice.kernel and largest(advice) is None


def test_machine_without_kernels_has_no_advice_on_them():
    advice = advise(T=4, machine="cpu")
    assert advice.kernel == "" and "One kernel" not in str(advice)


@pytest.mark.parametrize(
    ("machine", "half"), [("a100", "bfloat16"), ("v100", "float16"), ("cpu", None)]
)
def test_half_precision_is_advised_as_the_machine_has_it(machine, half):
    if machine == "cpu":
        peaks = {"float32": 1e11, "bfloat16": 8e10}
        machine = dataclasses.replace(MACHINES["cpu"], peaks=peaks)
    told = str(advise(T=4, B=256, D=1024, H=1024, machine=machine))
    for name in ("bfloat16", "float16"):
        assert (f"operands of {name}" in told) == (name == half)


def test_other_cells_can_be_asked_about():
    for name in ("mlstm", "rhn"):
        cell = getattr(cells, name)(*([2] if name == "rhn" else []))
        assert "It is bound by" in str(advise(cell, T=4, B=2, D=32, H=32))


def test_cells_with_something_round_them_can_be_asked_about():
    """Sizes that such cells cannot have are not advised."""
    cell = cells.residual(cells.lstm())
    advice = advise(cell, T=4, B=2, D=32, H=32, dtype="bfloat16")
    assert all("H=" not in change.what for change in advice.changes)
    assert "Products of bfloat16" in advice.plan.describe(long=True)


def test_advice_is_for_the_dtype_of_the_cell():
    half = advise(cells.residual(cells.lstm(dtype="bfloat16")), D=512, dtype=None)
    assert half.dtype == "bfloat16"
    whole = advise(cells.lstm(dtype="bfloat16"))
    assert "bfloat16" not in whole.plan.describe(long=True)


def test_a_layer_of_half_precision_has_a_plan_of_that():
    advice = advise(dtype=jnp.bfloat16)
    assert advice.dtype == "bfloat16"
    assert "Products of bfloat16" in advice.plan.describe(long=True)


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        ({"cell": "lstm"}, TypeError, "cell must be a scanrnn.cells.Cell"),
        ({"B": 0}, ValueError, "batch must be at least 1, got 0"),
        ({"H": 2.5}, TypeError, "hidden_features must be an int, got 2.5"),
        ({"dtype": "bf16"}, TypeError, "dtype: got 'bf16', want a floating-point"),
        ({"machine": "abacus"}, ValueError, "'abacus' is unknown"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        advise(**arguments)
