"""The benchmark of latency at small sizes: contenders agree and are in the table."""

import importlib.util

import pytest

NEEDED = ("onnxruntime", "torch")
if any(importlib.util.find_spec(name) is None for name in NEEDED):
    pytest.skip("no peers here", allow_module_level=True)

from benchmarks import latency, origin  # noqa: E402


@pytest.mark.slow
@pytest.mark.usefixtures("in_32_bit")
def test_contenders_agree_and_are_reported(monkeypatch):
    monkeypatch.setattr(latency, "CALLS", 1)
    monkeypatch.setattr(latency, "LEAST", 1)
    monkeypatch.setattr(latency, "SECONDS", 0.0)
    rows = [latency.measure(8, 1, None), latency.measure(8, 16, "ba2016")]
    assert [tuple(row["us"]) for row in rows] == [latency.NAMES, latency.NAMES[:-1]]
    assert all(0 < low <= high for row in rows for low, high in row["us"].values())
    assert [row["blocks"] for row in rows] == [10, 10]
    rows = [row | {"inline": True, "settled": True, "disturbance": 0.0} for row in rows]
    rows[1]["disturbance"] = 0.5
    about = origin.origin() | {"onnxruntime": "1.2.3"}
    text = latency.report(about | {"rows": rows})
    assert "| the caller's | none | 1 | 8 |" in text
    assert "| the caller's (disturbed) | ba2016 | 16 | 8 |" in text
    assert about["date"] in text and about["commit"] in text
    rows[0]["over_jitted"]["scanrnn"] = (1.5, 1.25, 1.75)
    assert "No row counts." in latency.report(about | {"rows": rows})
    rows[0]["settled"] = False
    rows[0]["over_jitted"]["scanrnn"] = (1.5, 1.45, 1.55)
    text = latency.report(about | {"rows": rows})
    assert "The worst row that counts: 1.50 [1.45, 1.55]." in text
    assert "| the caller's (not settled) | none | 1 | 8 |" in text
