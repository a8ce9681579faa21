"""The page of NVIDIA's guide: plans have its products, and the timed part runs."""

import functools

import jax
import pytest

import scanrnn
from benchmarks.cases import Case
from benchmarks.compiled.programs import shapes
from benchmarks.contenders import _base
from benchmarks.contenders.lax_scan import naive
from benchmarks.gemms import __main__ as gemms
from benchmarks.gemms import costs, findings, gnmt, products, sweeps, table
from scanrnn.planner.gemms import PATHS, PHASES


@pytest.fixture(autouse=True)
def _thirty_two_bits():
    with jax.enable_x64(False):
        yield


def test_gemms_of_a_plan_are_those_of_the_guide():
    """Except that a GRU's layer-to-layer products, and chunks, are in parts."""
    lines = table.lines()
    assert {(line.path, line.phase) for line in lines} == set(table.FORMULAS)
    for line in lines:
        apart = line.layer.startswith("gru") and line.path == "layer-to-layer"
        apart |= "chunks" in line.layer and line.phase == "weight gradient"
        assert line.verdict.startswith("the same work" if apart else "the same"), line
        assert apart or line.verdict == "the same", line


def test_gemms_are_the_same_on_a_cpu():
    assert table.lines("cpu") == table.lines("h100")


def test_gemms_are_run_in_the_form_of_the_plan():
    sizes = table.Sizes(4, 16, 512, 512)
    plan = table.plan_step("lstm", sizes, machine="cpu", implementation="planned")
    runner, verdict = products.ready(plan)
    assert verdict.passed, verdict
    by_hand = 2 * 4 * 16 * 4 * 512 * (512 + 512)
    for phase in products.PHASES:
        assert products.flops(plan, phase) == by_hand
        getattr(runner, phase)()
    cut = table.plan_step("lstm", sizes, chunk=2, implementation="planned")
    with pytest.raises(ValueError, match="came chunks of 2"):
        products.ready(cut)


def test_gemms_with_a_wrong_result_are_not_timed(monkeypatch):
    monkeypatch.setattr(products, "_in_loop", lambda *_: lambda a, b: 1.01 * (a @ b))
    found = sweeps.run(sweeps.QUICK_SWEEPS[:1], budget=0, least=1)
    for row in found["rows"]:
        assert "FAILED" in row["gate"] and not set(products.PHASES) & set(row)


def test_chunk_of_the_rule_is_the_chunk_that_is_timed_for_it():
    case = Case("lstm", 64, 32, 128, 512)
    plan = table.plan_step("lstm", table.Sizes(64, 32, 128, 512))
    assert 1 < plan.value_chunk < 64
    problem, found = shapes(case), []
    for options in (None, scanrnn.Options(chunk=plan.value_chunk)):
        model = naive(problem, functools.partial(scanrnn.scan, plan=options))
        found.append(_base.compile_(model.apply, model.params, problem.xs).program)
    assert found[0] == found[1]


def test_translation_model_has_every_size_by_kernels_and_by_both_kinds_of_loops():
    sizes = {*costs.OVER_B, *costs.OVER_H}
    rows = costs.load()["rows"]
    for found in (costs.kernels(), *(costs.loops(rows, way) for way in costs.WAYS)):
        assert {*found} == sizes
        # No schedule, and no loop, is shorter than its products.
        assert all(found[size] > costs.floor(*size) for size in sizes)


def test_kernels_stop_paying_where_planned_loops_are_as_near_to_the_floor():
    floors = {size: costs.floor(*size) for size in ((8, 1024), (256, 1024))}
    kernels = {(8, 1024): 3000.0, (256, 1024): 1.5 * floors[256, 1024]}
    planned = {(8, 1024): 9000.0, (256, 1024): 2 * floors[256, 1024]}
    (told,) = gnmt.stops(kernels, planned)
    assert "at no size here" in told and "least at B=256, H=1024" in told
    assert "take 2.00 times the floor, and the kernels 1.50 times" in told
    (told,) = gnmt.stops(kernels, planned | {(8, 1024): 2999.0})
    assert "stop paying**: B=8, H=1024. They pay least at B=8" in told
    assert gnmt.stops({}, planned) == []


def test_sequence_that_is_the_fastest_chunk_is_not_compared_with_itself():
    def rows(forward, train):
        one = {"seconds": [forward] * 3, "median": forward}
        other = {"seconds": [train] * 3, "median": train}
        return {"forward": one, "train": other}

    chunks = [{"F": "32"} | rows(1.0, 2.0), {"F": "64"} | rows(2.0, 1.0)]
    told = findings.whole({"S": 64, "rows": chunks})
    slower = "forward: 2.00 [2.00, 2.00] times the time of F=32"
    assert told == f"{slower}; train: here it is the fastest"


@pytest.mark.slow
def test_quick_form_writes_the_page_and_its_pictures(tmp_path, capsys):
    assert gemms.main(["--quick"], tmp_path) == 0
    page = (tmp_path / "gemms-quick.md").read_text()
    assert capsys.readouterr().out == page + "\n"
    for words in (*PATHS[:2], *PHASES, "lstm in chunks", "**the rule's**", "the guide"):
        assert words in page
    for picture in ("sides", "sizes", "chunks"):
        assert f"(gemms-quick-{picture}.png)" in page
        assert (tmp_path / f"gemms-quick-{picture}.png").stat().st_size > 1000
    assert "not timed" not in page
    (tmp_path / "gemms-quick.md").unlink()
    gemms.main(["--quick", "--report"], tmp_path)
    assert (tmp_path / "gemms-quick.md").read_text() == page
