"""The benchmark of latency at small sizes: contenders agree and are in the table."""

import importlib.util

import pytest

NEEDED = ("onnxruntime", "torch")
if any(importlib.util.find_spec(name) is None for name in NEEDED):
    pytest.skip("no peers here", allow_module_level=True)

from benchmarks import latency  # noqa: E402


@pytest.mark.usefixtures("in_32_bit")
def test_contenders_agree_and_are_reported(monkeypatch):
    monkeypatch.setattr(latency, "CALLS", 1)
    rows = [latency.measure(8, 1, None), latency.measure(8, 16, "ba2016")]
    assert [tuple(row["us"]) for row in rows] == [latency.NAMES, latency.NAMES[:-1]]
    assert all(0 < low <= high for row in rows for low, high in row["us"].values())
    text = latency.report([row | {"inline": True} for row in rows], others=0.5)
    assert "| the caller's | none | 1 | 8 |" in text
    assert "| the caller's | ba2016 | 16 | 8 |" in text
    assert "used 0.5 cores" in text
