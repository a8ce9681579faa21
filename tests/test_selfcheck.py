"""`scanrnn.selfcheck`: every cell in every way, and how errors are measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn._tune import errors
from scanrnn.executors import pallas_tpu
from scanrnn.executors.kernels import kernel as _kernel

NAME = pallas_tpu.NAME


# One of each kind; the tests of kernels have all cells.
NAMES = ["lstm, layer norm", "sru", "lru", "mlstm"]


@pytest.mark.slow
def test_selfcheck_finds_every_way_right():
    with jax.enable_x64(False):
        report = scanrnn.selfcheck(NAMES, dtypes=["float32"], sizes=(4, 2, 16), runs=0)
    ran = [c for c in report.checks if c.error is not None]
    assert {c.implementation for c in ran} >= {"scan", "planned", NAME}
    assert all(c.right for c in ran)
    # An mLSTM has a gradient that is zero but for rounding, and the error is a share of
    # 1e-4 of the largest gradient there. All others are below 2e-6 on three CPUs.
    errors = {True: 1e-4, False: 1e-5}
    assert all(c.error < errors[c.cell == "mlstm"] for c in ran)


@pytest.mark.slow
def test_selfcheck_reports_a_kernel_that_fails(monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("out of fast memory")

    monkeypatch.setattr(_kernel, "run", fails)
    report = scanrnn.selfcheck(["sru"], dtypes=["float32"], sizes=(3, 2, 4), runs=0)
    (kernel,) = (c for c in report.checks if c.implementation == NAME)
    assert kernel.right is False and "RuntimeError: out of fast" in kernel.reason
    planned = next(c for c in report.checks if c.implementation == "planned")
    assert planned.right and f"error {planned.error:.1e}" in str(report)


@pytest.mark.parametrize(
    "got, wanted, least, most",
    [
        ([jnp.full(2, jnp.nan), jnp.ones(2)], [jnp.ones(2)] * 2, np.inf, np.inf),
        ([jnp.ones(2), jnp.full(2, jnp.nan)], [jnp.ones(2)] * 2, np.inf, np.inf),
        ([jnp.ones(2), jnp.full(2, 2e-10)], [jnp.ones(2), jnp.zeros(2)], 0, 1e-3),
        ([jnp.zeros(2)], [jnp.zeros(2)], 0, 0),
        (
            [jnp.full(4, 1e6), jnp.zeros(4)],
            [jnp.full(4, 1e6), jnp.full(4, 0.05)],
            0.01,
            1,
        ),
        ([jnp.array([-np.inf, 1.0])], [jnp.array([-np.inf, 1.0])], 0, 0),
        ([jnp.array([np.inf, 1.0])], [jnp.array([-np.inf, 1.0])], np.inf, np.inf),
        ([jnp.array([3])], [jnp.array([4])], np.inf, np.inf),
        ([1.25 * jnp.ones(2)], [jnp.ones(2)], 0.25, 0.25),
    ],
)
def test_error_of_results_knows_nan_zeros_and_integers(got, wanted, least, most):
    assert least <= errors.error(got, wanted) <= most


def test_selfcheck_says_what_did_not_run():
    report = scanrnn.selfcheck(["elman"], dtypes=["float32"], sizes=(2, 1, 4), runs=1)
    reasons = {c.implementation: c.reason for c in report.checks}
    assert reasons[NAME] == ""
    assert "elman" in str(report) and "ms" in str(report)
    assert "0 of 4 checks are wrong" in str(report)
    with pytest.raises(ValueError, match="no cell 'gpu'"):
        scanrnn.selfcheck(["gpu"])
    with pytest.raises(ValueError, match="no executor 'cudnn'; there are 'planned'"):
        scanrnn.selfcheck(["gru"], implementations=["cudnn"])


@pytest.mark.parametrize("argument", ["names", "dtypes", "implementations"])
def test_selfcheck_refuses_a_text_in_place_of_a_list(argument):
    with pytest.raises(
        TypeError, match=rf"{argument} is the text 'gru', want a list: .*=\['gru'\]"
    ):
        scanrnn.selfcheck(**{argument: "gru"})


@pytest.mark.usefixtures("in_32_bit")
def test_selfcheck_refuses_float64_that_jax_would_not_give():
    with pytest.raises(ValueError, match="float64, which is switched off in JAX; set"):
        scanrnn.selfcheck(["gru"], dtypes=["float32", "float64"])


def test_selfcheck_checks_every_cell_in_dtypes_that_come_from_an_iterator():
    report = scanrnn.selfcheck(
        ["elman", "gru"],
        dtypes=iter(["float32", "bfloat16"]),
        implementations=["scan"],
        sizes=(3, 2, 4),
        runs=0,
    )
    assert [(c.cell, c.dtype) for c in report.checks] == [
        *[("elman", "float32"), ("elman", "bfloat16")],
        *[("gru", "float32"), ("gru", "bfloat16")],
    ]


@pytest.mark.parametrize(
    "name, H, reason",
    [
        ("lstm, projection", 4, "projection=8, want at most hidden_features=4"),
        ("lstm, heads", 9, "heads"),
    ],
)
def test_selfcheck_notes_a_cell_that_cannot_have_the_size(name, H, reason):
    report = scanrnn.selfcheck(
        [name, "gru"],
        dtypes=["float32"],
        implementations=["planned"],
        sizes=(3, 2, H),
        runs=0,
    )
    refused, ran = report.checks[:2], report.checks[2:]
    assert all(c.right is None and reason in c.reason for c in refused)
    assert all(c.right for c in ran)
    assert "0 of 2 checks are wrong" in str(report)


def test_selfcheck_runs_the_executors_that_are_asked_for():
    report = scanrnn.selfcheck(
        ["gru"],
        dtypes=["float32"],
        implementations=["planned"],
        sizes=(2, 1, 4),
        runs=0,
    )
    assert [check.implementation for check in report.checks] == ["scan", "planned"]
    assert all(check.right for check in report.checks)


@pytest.mark.parametrize(
    "options, kind, match",
    [
        ({"sizes": (0, 2, 8)}, ValueError, "T of sizes must be at least 1, got 0"),
        ({"sizes": (2, 2.0, 8)}, TypeError, "B of sizes must be an int, got 2.0"),
        ({"sizes": (2, 8)}, ValueError, r"sizes=\(2, 8\), want \(T, B, H\)"),
        ({"sizes": 8}, ValueError, r"sizes=8, want \(T, B, H\)"),
        ({"dtypes": ["flot32"]}, TypeError, "dtypes must be a dtype .* got 'flot32'"),
        ({"dtypes": ["int32"]}, TypeError, "dtypes has int32, want floating-point"),
        ({"runs": -1}, ValueError, "runs=-1, want an int of at least 0"),
        ({"runs": "5"}, ValueError, "runs='5', want an int of at least 0"),
    ],
)
def test_selfcheck_refuses_arguments_by_name(options, kind, match):
    with pytest.raises(kind, match=f"^selfcheck: .*{match}"):
        scanrnn.selfcheck(["gru"], **options)
