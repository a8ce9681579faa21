"""The short studies of the source documents: they run, and their numbers add up."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import origin, sentences  # noqa: E402
from benchmarks.course import (  # noqa: E402
    __main__ as course,
)
from benchmarks.course import memory, on_a_gpu, step_times  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_32_bit")

PROGRAM = """\
HloModule tiny

%joined (a: f32[2,2], b: f32[2,2]) -> f32[2,2] {
  %a = f32[2,2]{1,0} parameter(0)
  %b = f32[2,2]{1,0} parameter(1)
  %dot.1 = f32[2,2]{1,0} dot(%a, %b)
  ROOT %tanh.1 = f32[2,2]{1,0} tanh(%dot.1)
}

%late (a: f32[2,2]) -> f32[2,2] {
  %a.1 = f32[2,2]{1,0} parameter(0)
  ROOT %tanh.2 = f32[2,2]{1,0} tanh(%a.1)
}

%address (i: s32[]) -> s32[] {
  %i = s32[] parameter(0)
  ROOT %add.1 = s32[] add(%i, %i)
}

ENTRY %main (x: f32[2,2], n: s32[]) -> f32[2,2] {
  %x = f32[2,2]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %product = f32[2,2]{1,0} fusion(%x, %x), kind=kOutput, calls=%joined
  %gates = f32[2,2]{1,0} fusion(%product), kind=kLoop, calls=%late
  %counter = s32[] fusion(%n), kind=kLoop, calls=%address
  ROOT %copy.1 = f32[2,2]{0,1} copy(%gates)
}
"""


def test_thunks_are_products_or_pointwise_or_move_data():
    kinds = step_times.kinds(PROGRAM)
    found = {name: kinds[name] for name in ("product", "gates", "counter", "copy.1")}
    assert found == {
        "product": "products",
        "gates": "pointwise",
        "counter": "moving data",
        "copy.1": "moving data",
    }


def test_counts_on_a_gpu_are_those_of_the_committed_results():
    found = on_a_gpu.measure()
    assert set(found["ratios"]["lstm"]["scanrnn"]) == {1.0}
    results = json.loads(on_a_gpu.RESULTS.read_text())
    launches = {
        row["contender"]: row["launches"]
        for row in results["rows"]
        if (row["machine"], row["mode"]) == ("h100", "train")
        and row["case"].get("cell") == "lstm"
    }
    # The last of the sizes.
    want = launches["lax_scan"] / launches["scanrnn"]
    assert found["ratios"]["lstm"]["lax_scan"][-1] == pytest.approx(want)
    about, _, says, _, flash = on_a_gpu.report(found)
    assert results["commit"] in about
    mean = math.prod(found["ratios"]["lstm"]["lax_scan"])
    mean **= 1 / len(found["ratios"]["lstm"]["lax_scan"])
    assert f"starts {mean:.1f} times as much" in says
    # 2.01 ms of cuDNN for 1,024 steps; our estimate is of kernels that are counted.
    assert "| cuDNN * | 2.0 | 5.1 |" in flash
    kernels = found["flash"]["scanrnn"]["train"]
    assert kernels < found["flash"]["lax_scan"]["train"]
    assert f"{1.3 * kernels:.1f} ({kernels:.1f} kernels) |" in flash


def test_peak_of_memory_is_what_a_call_takes():
    taken = memory.peak(lambda: np.ones(20_000_000, np.uint8).sum())
    if taken is None:
        pytest.skip("this system does not say what a process takes")
    assert 19e6 < taken < 60e6
    assert memory.peak(lambda: None) < 10e6


def test_lengths_of_sentences_have_the_mean_that_the_page_names():
    found = sentences.lengths(4000)
    assert found.min() >= 1 and found.max() <= sentences.LONGEST
    assert found.mean() == pytest.approx(sentences.MEAN, rel=0.03)
    times = {"3": {"seconds": [1.0, 2.0]}, "5": {"seconds": [10.0, 20.0]}}
    assert sentences._epoch(times, {3: 2, 5: 1}) == [12.0, 24.0]


def check_clipping(found):
    """The bound is kept, and the norms are those of torch."""
    assert [row["bound"] for row in found["rows"]] == [None, 1.0, 5.0]
    for row in found["rows"]:
        first, theirs = row["ours"][0], row["torch"][0]
        assert first["before"] == pytest.approx(theirs["before"], rel=1e-3)
        bound = math.inf if row["bound"] is None else row["bound"]
        assert first["after"] == pytest.approx(min(first["before"], bound), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("section", course.SECTIONS)
def test_course_runs_in_its_quick_form(section, tmp_path, monkeypatch):
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    written = course.main(["--quick", "--sections", section])
    assert written == tmp_path / ".benchmarks" / "course.md"
    text = written.read_text()
    assert f"## {course.SECTIONS[section].TITLE}\n" in text
    results = json.loads(written.with_suffix(".json").read_text())
    assert results["date"] in text and results["machine"]["cpu"] in text
    if section == "clipping":
        check_clipping(results["sections"][section])
