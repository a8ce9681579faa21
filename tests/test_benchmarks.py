"""The benchmarks run, their gate refuses errors, and a report needs only its file.

No test here checks a time. Shapes are tiny: the tests are for the code of benchmarks.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks import (
    aims,
    beside,
    cases,
    compare,
    contenders,
    gate,
    intervals,
    machine,
    measure,
    products_alone,
    products_page,
    ratios,
    report,
    steps,
    suite,
)
from benchmarks.contenders import _base, lax_scan
from benchmarks.race import MIN_ROUNDS, Entry, Race

FIXTURE = pathlib.Path(__file__).parent / "data" / "benchmark_results.json"
TINY = cases.Case("lstm", T=3, B=2, D=4, H=4)
TINY_ROW = "elman-T64-B1-D16-H16-float32"


@pytest.fixture(autouse=True)
def _thirty_two_bits():
    with jax.enable_x64(False):
        yield


# The cells that each contender computes. The coverage test keeps this complete.
STOCK = ("lstm", "gru", "elman")
WRITTEN = ("elman", "lstm", "seed_rnn", *steps.CUSTOM)
COMPUTES = {
    "scanrnn": tuple(steps.CELLS),
    "lax_scan": tuple(steps.CELLS),
    "torch": (*STOCK, "seed_rnn"),
    "torch_loop": STOCK,
    "torch_lstm": tuple(c for c in steps.CELLS if c not in ("lstm", "conv_lstm")),
    # A CPU has no CUDA graphs.
    "torch_graph": (),
    "torch_lstm_graph": (),
    "torch_eager": WRITTEN,
    "torch_compile": WRITTEN,
    "torch_script": WRITTEN,
    "torch_scan": WRITTEN,
    "numba_loop": ("lstm",),
    "flax_linen": (*STOCK, "conv_lstm"),
    "flax_nnx": ("lstm", "elman"),
    "haiku": ("lstm", "elman"),
    "equinox": ("lstm", "gru", "elman"),
    "keras": (*STOCK, "conv_lstm"),
}
# The gate itself compares with lax.scan, and torch_lstm is torch: one cell of each is
# enough. The planned scan has its own tests.
GATED = COMPUTES | {
    "scanrnn": ("seed_rnn", "ln_mi_res_lstm", "conv_lstm"),
    "lax_scan": ("elman",),
    "torch_lstm": ("mi_lstm",),
    "torch_compile": ("elman",),
    "torch_script": ("ln_mi_res_lstm",),
    "torch_scan": ("ln_mi_res_lstm",),
}


def _tiny(cell):
    """A tiny case of any cell; convolutional cells get pictures."""
    return dataclasses.replace(TINY, cell=cell, S=5 if "conv" in cell else 0)


def _find(name):
    try:
        return contenders.find(name)
    except contenders.Absent as reason:
        pytest.skip(str(reason))


def test_contenders_are_all_in_the_table():
    assert set(COMPUTES) == set(GATED) == set(contenders.FILES)


@pytest.mark.filterwarnings("default")  # peers may warn on import
@pytest.mark.parametrize("name", COMPUTES)
def test_contenders_support_the_cells_they_claim(name):
    contender = _find(name)
    claimed = {cell for cell in steps.CELLS if contender.supports(_tiny(cell)) is None}
    assert claimed == set(COMPUTES[name])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "cell"), [(name, cell) for name in GATED for cell in GATED[name]]
)
def test_contenders_pass_the_gate(name, cell):
    contender = _find(name)
    case = contender.computes(_tiny(cell))
    verdict = gate.check(contender.setup(cases.problem(case)), case)
    assert verdict.passed, verdict


def test_contenders_absent_or_unknown_say_so(monkeypatch):
    monkeypatch.setitem(contenders.FILES, "missing", "missing")
    with pytest.raises(contenders.Absent, match="missing is not installed"):
        contenders.find("missing")
    with pytest.raises(ValueError, match="'cudnn' is unknown: expected any of"):
        contenders.find("cudnn")
    with pytest.raises(ValueError, match="unknown .'lift'., expected any of"):
        contenders.find("scanrnn:split+lift")
    with pytest.raises(ValueError, match="accelerate:cudnn: expected one of"):
        contenders.find("accelerate:cudnn")


def test_case_refuses_what_it_cannot_be():
    with pytest.raises(ValueError, match="cell='lstn': expected one of"):
        cases.Case("lstn", 1, 1, 1, 1)
    with pytest.raises(ValueError, match="dtype='int8': expected one of"):
        cases.Case("lstm", 1, 1, 1, 1, "int8")
    with pytest.raises(ValueError, match="expected D == H"):
        cases.Case("res_lstm", 1, 1, 2, 3)
    for cell, S in (("conv_lstm", 0), ("lstm", 4)):
        with pytest.raises(ValueError, match="S, the side of pictures"):
            cases.Case(cell, 1, 1, 2, 3, S=S)


class Answering:
    """A contender with the answers of the reference, changed in one place."""

    def __init__(self, case, where, error):
        self._want, self._problem = gate.reference(case), cases.problem(case)
        self._where, self._error = where, error

    def _spoil(self, where, value):
        return value * (1 + self._error) if where == self._where else value

    def ys(self):
        return self._spoil("ys", self._want.ys)

    def train(self):
        return self._spoil("loss", self._want.loss)

    def weights(self):
        return {
            name: self._problem.weights[name].astype(np.float64)
            - self._problem.lr * self._spoil(f"d {name}", gradient)
            for name, gradient in self._want.gradients.items()
        }


@pytest.mark.parametrize("dtype", cases.TOLERANCES)
@pytest.mark.parametrize("where", ["ys", "loss", "d w", "d b"])
def test_gate_finds_the_one_wrong_answer(where, dtype):
    case = dataclasses.replace(TINY, dtype=dtype)
    bound = cases.TOLERANCES[dtype]
    verdict = gate.check(Answering(case, where, 1.5 * bound), case)
    assert (verdict.passed, verdict.where) == (False, where)
    assert gate.check(Answering(case, where, 0.5 * bound), case).passed
    verdict = gate.check(Answering(case, where, np.nan), case)
    assert (verdict.passed, verdict.where) == (False, where)


def test_gate_refuses_another_shape():
    runner = Answering(TINY, "ys", 0.0)
    runner._want = runner._want._replace(ys=runner._want.ys[:, :, :1])
    verdict = gate.check(runner, TINY)
    assert (verdict.passed, verdict.where) == (False, "ys")


def test_gate_leaves_a_wrong_contender_without_times():
    def setup(problem):
        model = lax_scan.naive(problem, jax.lax.scan)
        return _base.JaxRunner(
            problem, model._replace(apply=lambda p, xs: 1.01 * model.apply(p, xs))
        )

    wrong = _base.Contender("wrong", lambda case: None, setup)
    race = Race((TINY, one) for one in (wrong, contenders.find("lax_scan")))
    race.round()
    entry, right = race.entries
    assert not entry.runs and right.runs
    assert entry.runner is None and not entry.seconds
    row = suite.Row("grid", TINY, ("wrong", "lax_scan"))
    entries = {entry.contender.name: entry for entry in race.entries}
    record = measure.record(row, race, entries, LIMITS)
    assert set(record["contenders"]["wrong"]) == {"computes", "gate"}
    assert measure.ratio(record, "train", "wrong", "lax_scan") is None
    assert "not timed: gate FAILED" in compare.table(entries, TINY, "train", 1.0)


PRODUCT = {"gflops": 50.0, "cores": 1.0}
LIMITS = {
    "products": [{"B": 2, "H": 4, "dtype": "float32", "in the loop": PRODUCT}],
    "gemm_float32": 100.0,
    "gemm_bfloat16": 200.0,
    "memory": 10.0,
}


def test_case_counts_the_flops_of_its_gemms():
    case = cases.Case("lstm", T=5, B=3, D=7, H=2)
    assert case.flops("forward") == 2 * 5 * 3 * (7 + 2) * 8
    assert case.flops("train") == 2 * case.flops("forward") + 2 * 5 * 3 * 2 * 8
    case = cases.Case("conv_lstm", T=5, B=3, S=4, D=7, H=2)
    assert case.flops("forward") == 2 * 5 * 3 * 4 * 4 * 3 * 3 * (7 + 2) * 8


@pytest.mark.parametrize("section", suite.SECTIONS)
def test_suite_sections_name_known_contenders_and_have_a_yardstick(section):
    rows = suite.rows(section)
    assert len({row.name for row in rows}) == len(rows)
    assert section in ratios.AGAINST
    for row in rows:
        names = {
            name.split("@")[0].removeprefix("accelerate:") for name in row.contenders
        }
        assert {n for n in names if not n.startswith("scanrnn:")} <= set(COMPUTES)
        assert any(name in row.contenders for name in ratios.AGAINST[section])


def test_suite_covers_every_cell_and_contender():
    rows = suite.rows(*suite.SECTIONS)
    assert {row.case.cell for row in rows} == set(steps.CELLS)
    able = {name for name, cells in COMPUTES.items() if cells}
    assert able <= {name for row in rows for name in row.contenders}


def test_suite_quick_is_four_shapes_against_lax_scan():
    rows = suite.rows("quick")
    assert len({row.case for row in rows}) == 4
    assert {row.contenders for row in rows} == {("scanrnn", "lax_scan")}


def test_ladder_rungs_pass_the_gate():
    case = cases.Case("elman", T=4, B=2, D=3, H=2)
    race = Race((case, contenders.find(name)) for name in suite.LADDER.values())
    verdicts = {entry.contender.name: entry.verdict for entry in race.entries}
    assert all(verdict.passed for verdict in verdicts.values()), verdicts


def test_compare_prints_a_gated_table(capsys, monkeypatch):
    monkeypatch.setattr(machine, "gemm_peak", lambda dtype: 100.0)
    monkeypatch.setattr(machine, "prepare", lambda: None)
    compare.main("--T 3 --B 2 --H 4 --rounds 1 --contenders scanrnn,lax_scan".split())
    printed = capsys.readouterr().out
    assert "lstm-T3-B2-D4-H4-float32" in printed
    for name in ("scanrnn", "lax_scan"):
        lines = [line for line in printed.splitlines() if line.startswith(name)]
        assert len(lines) == 2 and all("ok," in line for line in lines)


def test_measure_records_what_the_report_reads():
    row = suite.Row("quick", TINY, ("scanrnn", "lax_scan"))
    race, (entries,) = measure.enter([row], cases.MODES)
    race.round()
    record = measure.record(row, race, entries, LIMITS)
    record = json.loads(json.dumps(record))
    assert record["case"] == dataclasses.asdict(TINY)
    for name in row.contenders:
        times = record["contenders"][name]["train"]
        assert times["median"] > 0 and times["temp_bytes"] >= 0
        assert times["compile_seconds"] > 0
    assert measure.ratio(record, "train", "lax_scan", "lax_scan") == 1.0


def test_rows_of_one_size_time_each_program_once(monkeypatch):
    """Yardsticks are shared by all rows, and absent contenders have reasons."""
    _find("torch")
    monkeypatch.setattr(measure.Race, "_enter", lambda race, *pair: Entry(*pair))
    half = dataclasses.replace(TINY, dtype="bfloat16")
    rows = [
        suite.Row("grid", TINY, ("scanrnn", "lax_scan", "torch")),
        suite.Row("custom", _tiny("mi_lstm"), ("scanrnn", "lax_scan", "torch_lstm")),
        suite.Row("bf16", half, ("scanrnn", "scanrnn@float32", "torch_lstm")),
    ]
    monkeypatch.setattr(Entry, "runs", False)  # nothing was compiled
    race, (grid, custom, bf16) = measure.enter(rows, cases.MODES)
    assert bf16["scanrnn@float32"] is grid["scanrnn"]
    assert bf16["scanrnn"].case is half
    assert bf16["torch_lstm"] == "it is `torch`"
    assert custom["torch_lstm"] is grid["torch"]
    assert len(race.entries) == 6


def test_machine_names_neither_host_nor_path():
    described = json.dumps(machine.describe())
    assert "/" not in described.replace("N/A", "")
    assert not set(machine.kind()) - set("abcdefghijklmnopqrstuvwxyz0123456789-")


UNITS = {"": {"avx2"}, "avx512-": {"avx512f"}, "amx-bf16-": {"amx_bf16", "avx512f"}}


@pytest.mark.parametrize("unit", UNITS)
def test_machine_kind_names_the_widest_unit(monkeypatch, unit):
    """Two processors of one name may differ in it, and have pages of their own."""
    monkeypatch.setattr(machine._processor, "flags", lambda: UNITS[unit])
    monkeypatch.setattr(machine, "cpu_name", lambda: "AMD EPYC")
    assert machine.kind() == f"amd-epyc-{unit}{machine.cores()}-cores"


@pytest.mark.parametrize(
    "maker, family, flags, design",
    [
        ("AuthenticAMD", 25, "avx2 avx512f avx512bw", " Zen 4"),
        ("AuthenticAMD", 25, "avx2", " Zen 3"),
        ("AuthenticAMD", 26, "avx2 avx512f", " Zen 5"),
        ("AuthenticAMD", 99, "avx2", ""),
        ("GenuineIntel", 25, "avx2 avx512f", ""),
    ],
)
def test_machine_of_a_hidden_name_has_its_design(
    monkeypatch, maker, family, flags, design
):
    text = (
        f"vendor_id\t: {maker}\ncpu family\t: {family}\nmodel\t\t: 17\n"
        f"model name\t: Fast 9\nflags\t\t: fpu {flags}\n"
    )
    monkeypatch.setattr(machine, "_cpuinfo", lambda: text)
    assert machine.cpu_name() == f"Fast 9{design}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_machine_limits_are_positive(dtype):
    assert machine.gemm_peak(dtype, n=32) > 0
    assert machine.bandwidth(mebibytes=1) > 0


def test_machine_tells_the_work_of_others_from_its_own(monkeypatch):
    busy, own, clock = iter((100.0, 107.0)), iter((3.0, 6.0)), iter((50.0, 52.0))
    monkeypatch.setattr(machine, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(machine.time, "process_time", lambda: next(own))
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    # All processes worked 7 s within 2 s; 3 s of the work were ours.
    assert machine.Others().cores() == 2.0


def test_report_regenerates_from_the_file_alone(tmp_path):
    source = tmp_path / "some-machine.json"
    source.write_bytes(FIXTURE.read_bytes())
    written = report.write(source)
    text = written.read_text()
    assert written == tmp_path / "some-machine.md"
    assert (tmp_path / "some-machine.png").stat().st_size > 1000
    results, records = report.load(FIXTURE)
    assert results["machine_info"]["cpu"] in text
    assert results["commit_info"]["id"][:12] in text
    for package, version in results["machine_info"]["versions"].items():
        assert (f"{package} {version}" in text) == (version != "absent")
    assert "In 1 rows other processes used more than 0.1 cores" in text
    measured = [aim.number(records) is not None for aim in aims.AIMS]
    assert [aim.text in text for aim in aims.AIMS] == measured
    assert f"{measured.count(False)} other aims" in text and any(measured)
    for record in records:
        assert f"## {record['section'].capitalize()}" in text
        for entry in record["contenders"].values():
            assert entry.get("absent", "") in text


EVERY = {*suite.SECTIONS, "programs", "precision"}


def test_report_fixture_has_a_row_of_every_section():
    _, records = report.load(FIXTURE)
    assert {record["section"] for record in records} == EVERY


def test_aims_are_measured_and_judged(monkeypatch):
    _, records = report.load(FIXTURE)
    monkeypatch.setattr(aims, "NOT_WORSE", ("GRU, Flax Linen",))
    for aim in aims.AIMS:
        number = aim.number(records)
        assert number is not None, aim.text
        over = number - aim.bound
        assert aim.met(records) is bool(over <= 0 if aim.at_most else over >= 0)
        assert aim.number([]) is None and aim.met([]) is None


def test_aims_set_aside_what_does_not_grow_with_the_sequence():
    million = 1_000_000
    assert aims.beyond(3 * million, 0) == 0
    assert aims.beyond(14 * million, 8 * million) == 1.25
    assert aims.beyond(14 * million, 0) == 10 * million


def test_aims_leave_out_whoever_failed_the_gate():
    _, records = report.load(FIXTURE)
    record = json.loads(json.dumps([r for r in records if r["section"] == "grid"][1]))
    before = aims.ratios([record], "grid", "train", "scanrnn", "torch")
    ours = record["contenders"]["scanrnn"]
    record["contenders"]["scanrnn"] = {key: ours[key] for key in ("computes", "gate")}
    record["contenders"]["scanrnn"]["gate"]["passed"] = False
    assert len(before) == 1
    assert aims.ratios([record], "grid", "train", "scanrnn", "torch") == []
    assert "| wrong |" in ratios.table([record], "train")


def test_aims_do_not_compare_a_program_with_itself():
    _, records = report.load(FIXTURE)
    (aim,) = (aim for aim in aims.AIMS if "worst of other programs" in aim.text)
    record = json.loads(json.dumps([r for r in records if r["section"] == "grid"][1]))
    pair = [record["contenders"][name] for name in ("scanrnn", "lax_scan")]
    pair[0]["forward"]["median"] = 9 * pair[1]["forward"]["median"]
    np.testing.assert_allclose(aim.number([record]), 9)
    for entry in pair:
        entry["forward"]["program"] = "0123456789abcdef"
    assert aim.number([record]) < 9


def test_fingerprint_is_of_the_instructions_alone():
    def program(f):
        return _base.compile_(f, np.ones(3, np.float32)).program

    one, same = program(lambda x: x + 1), program(lambda x: x + 1)
    assert one == same
    assert program(lambda x: x + 1) != program(lambda x: x + 2)


def test_interval_of_a_median_narrows_with_rounds():
    noisy = np.random.default_rng(0).normal(1.0, 0.1, 1000)
    few, many = intervals.median(noisy[:30]), intervals.median(noisy)
    assert few.low < few.value < few.high
    assert many.width < few.width / 2
    assert few.value == np.median(noisy[:30])


def test_interval_of_a_ratio_leaves_out_what_hits_both():
    """Rounds that are slow for all contenders do not change a ratio."""
    machine_ = np.random.default_rng(0).uniform(1, 3, 30)
    estimate = intervals.ratio(2 * machine_, machine_)
    assert intervals.median(machine_).width > 0.1
    assert estimate == pytest.approx((2.0, 2.0, 2.0))


def test_interval_of_a_mean_draws_the_rounds_of_one_race_together():
    rng = np.random.default_rng(0)
    slow, other = rng.uniform(1, 3, (2, 40))
    # What one ratio gains in a round of their race, the other one loses.
    pairs = [(slow, np.ones(40)), (np.ones(40), slow)]
    together = intervals.geometric_mean(pairs, ["a", "a"])
    assert together == pytest.approx((1.0, 1.0, 1.0))
    apart = intervals.geometric_mean(pairs, ["a", "b"])
    assert apart.value == pytest.approx(1.0) and apart.width > 0.05
    one = slow, np.ones(40)
    assert intervals.geometric_mean([one], ["a"]) == pytest.approx(
        intervals.ratio(*one)
    )
    more = intervals.geometric_mean([one, (other, np.ones(40))], ["a", "b"])
    assert more.width < intervals.ratio(*one).width


def test_mean_has_an_interval_if_the_rounds_are_known():
    _, records = report.load(FIXTURE)
    records = [r for r in records if r["section"] == "grid"]
    pair = "train", "scanrnn", "torch"
    assert measure.mean_interval(records, *pair) is None
    for record in records:
        for name in ("scanrnn", "torch"):
            times = record["contenders"][name]["train"]
            spread = np.linspace(0.9, 1.1, 31)
            times["seconds"] = [times["median"] * share for share in spread]
    shown = beside.mean(records, *pair)
    value = aims.geometric_mean(measure.ratio(r, *pair) for r in records)
    assert shown == f"{value:.2f} [{value:.2f}, {value:.2f}]"


def test_rows_of_one_size_are_of_one_race():
    _, records = report.load(FIXTURE)
    record = records[0]
    other = record | {"case": record["case"] | {"cell": "gru", "last": True}}
    larger = record | {"case": record["case"] | {"B": 1 + record["case"]["B"]}}
    assert measure.race_of(record) == measure.race_of(other)
    assert measure.race_of(record) != measure.race_of(larger)


def test_race_counts_a_disturbance_of_a_few_rounds():
    race = Race([], ())
    assert race.disturbance == 0
    race.others = [0.0] * 27 + [2.0] * 3
    assert race.disturbance == pytest.approx(0.2)


def test_race_goes_on_until_it_is_settled(monkeypatch):
    race = Race([], ())
    looks = iter([False, False, True])
    monkeypatch.setattr(Race, "settled", property(lambda race: next(looks)))
    race.run(budget=1000.0)
    assert len(race.others) == MIN_ROUNDS + 2 * 10
    race = Race([], ())
    race.run(budget=0.0)
    assert len(race.others) == MIN_ROUNDS == 30


def test_a_mode_that_was_not_timed_keeps_no_race_from_settling():
    assert Entry(None, None, seconds={"train": [1.0] * 30, "forward": []}).settled
    assert not Entry(None, None, seconds={"train": [1.0, 2.0] * 15}).settled


@pytest.mark.parametrize(
    ("settled", "disturbance", "mark"),
    [
        (True, 0.05, ""),
        (False, 0.0, " (not settled)"),
        (True, 0.2, " (disturbed)"),
    ],
)
def test_rows_that_do_not_count_are_marked_and_in_no_mean(settled, disturbance, mark):
    _, records = report.load(FIXTURE)
    record = [r for r in records if r["section"] == "grid"][1]
    record |= {"settled": settled, "disturbance": disturbance}
    assert measure.counts(record) == (mark == "")
    text = report.markdown(*report.load(FIXTURE)[:1], [record], "")
    assert f"| {ratios.title(record)}{mark} |" in text
    assert ("**geometric mean** | **" in text) == (mark == "")
    found = aims.ratios([record], "grid", "train", "scanrnn", "torch")
    assert len(found) == (mark == "")


@pytest.mark.slow
def test_benchmarks_run_optimised_and_show_who_is_absent(tmp_path):
    """Users run them like this: each row is a group, with one file of results."""
    code = "import sys; sys.modules['torch'] = None; import pytest; pytest.main"
    path = tmp_path / "found.json"
    words = ["--budget", "0", "--least", "2", "-rs", f"--benchmark-json={path}"]
    words += ["-k", "small-elman-T64-B1"]
    # Variables of pytest-xdist would switch pytest-benchmark off.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "XLA_FLAGS" and not name.startswith("PYTEST_")
    }
    run = subprocess.run(
        [sys.executable, "-c", f"{code}({['benchmarks', *words]})"],
        cwd=pathlib.Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "4 passed, 2 skipped" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 0, run.stdout + run.stderr
    assert "torch is not installed" in run.stdout
    results, (record,) = report.load(path)
    groups = {benchmark["group"] for benchmark in results["benchmarks"]}
    assert groups == {f"small-{TINY_ROW}, {mode}" for mode in cases.MODES}
    times = record["contenders"]["scanrnn"]["train"]
    assert times["rounds"] == len(times["seconds"]) == 2
    assert results["benchmarks"][0]["stats"]["rounds"] == 2
    # With the settings of the tests, XLA would not optimise the programs.
    refused = subprocess.run(
        [sys.executable, "-m", "pytest", "benchmarks", "-q"],
        cwd=pathlib.Path(__file__).parents[1],
        env=environment | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
    )
    assert "run `pytest benchmarks` on its own" in refused.stderr


def test_products_alone_are_a_sum_and_stand_beside_whole_steps():
    (row,) = products_alone.products_alone([(3, 2, 4, 8, "float32")])
    assert 0 < row["forward"] < row["train"]
    record = {
        "case": {**row, "cell": "lstm"},
        "contenders": {"torch": {"train": {"median": 0.125}}, "scanrnn": {}},
    }
    head, table = products_page.tables({"floors": [row]}, [record])
    assert head == "## Products alone"
    assert " | - | 125 | " in table.splitlines()[-1]


def test_geometric_mean_of_known_numbers():
    assert aims.geometric_mean([]) is None
    np.testing.assert_allclose(aims.geometric_mean([0.5, 2.0, 8.0]), 2.0)
