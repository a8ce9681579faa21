"""Compiled programs for other machines: they are read correctly, and do not grow.

The quick tests read small texts. The slow tests run the real compilers, if these are
installed (`make test-compiled`).
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest

from benchmarks import programs
from benchmarks.cases import Case
from benchmarks.compiled import (
    aims,
    apart,
    costs,
    gpu_kernels,
    hlo,
    kernels,
    measure,
    report,
    run,
    suite,
    summary,
    targets,
    thunks,
    workers,
)
from benchmarks.compiled.measure import LOOPS, ProgramCase, Row
from benchmarks.compiled.workers import Worker
from tests import compile_graphs
from tests.compiled_texts import H100, V5E


def test_parser_reads_types_operands_and_metadata():
    module = hlo.parse(H100)
    assert module.entry == "main"
    body = {i.name: i for i in module.computations["body"]}
    assert body["dot"].type == "(f32[4]{0}, s8[64]{0})"
    assert body["dot"].operands == ("h", "h")
    assert body["kernel"].op_name == "jit(f)/while/body/odd)name{}/mul"
    assert "metadata" not in body["kernel"].attributes
    assert body["while.3"].called == {"condition": "cond", "body": "inner_body"}
    assert hlo.root(module.computations["body"]).opcode == "tuple"
    entry = {i.name: i for i in module.computations["main"]}
    assert entry["which"].branches == ("cheap", "dear")
    assert entry["zero"].operands == ("0",)
    with pytest.raises(ValueError, match="it has no ENTRY"):
        hlo.parse("HloModule empty")


def test_launches_count_what_is_started():
    module = hlo.parse(H100)
    loops = {loop.name: loop for loop in costs.all_loops(module)}
    # A library call, a kernel, the counter, and two trips of the loop inside.
    assert loops["while.1"].cost.launches == 5
    assert (loops["while.1"].trips, loops["while.1"].depth) == (5, 0)
    assert (loops["while.3"].trips, loops["while.3"].depth) == (2, 1)
    # If the trips are not known, the condition is a launch in each trip.
    assert (loops["while.2"].trips, loops["while.2"].cost.launches) == (None, 2)
    # Two copies, the loops, and the more expensive branch.
    assert costs.total(module).launches == 2 + 5 * 5 + 2 + 2


def test_cycles_are_summed_over_trips_and_not_inside_fusions():
    module = hlo.parse(V5E)
    one, other = costs.all_loops(module)
    assert (one.trips, other.trips) == (28, 7)
    assert one.cost.cycles == 788 and one.cost.unpriced == 1
    assert costs.total(module).cycles == 35 * 788 + 100
    assert costs.kernels(module) == 0
    kernel = V5E.replace("AllocateBuffer", "tpu_custom_call")
    assert costs.kernels(hlo.parse(kernel)) == 1


def test_hot_names_the_dearest_first():
    lines = measure.hot(V5E, 2)["body"]
    assert [(one["name"], one["cycles"]) for one in lines] == [
        ("dear", 768),
        ("cheap", 20),
    ]
    assert lines[0]["kind"] == "fusion Output" and lines[0]["path"] == "mul"
    kinds = [one["kind"] for one in measure.hot(H100)["body"]]
    assert kinds == [
        "custom-call __cublas$gemm",
        "fusion Custom __triton",
        "fusion Loop",
    ]


def _record(row, text, temp_bytes):
    numbers = measure.read(text, top=4)
    seconds = {"lower_seconds": 0.5, "compile_seconds": 1.5, "temp_bytes": temp_bytes}
    return json.loads(json.dumps(row.as_json() | seconds | numbers))


def _results():
    """A results file with two programs for each machine and mode, and one failure."""
    rows = []
    for machine, text, T in (("h100", H100, 5), ("v5e", V5E, 28)):
        cells = [Case(cell, T, 2, 4, 4) for cell in ("lstm", "ln_lstm")]
        for case in (*cells, ProgramCase("Kalman filter")):
            for mode in ("train", "forward"):
                rows.append(_record(Row(machine, case, mode, "scanrnn"), text, 3))
                rows.append(_record(Row(machine, case, mode, "lax_scan"), text, 4))
        case = Case("elman", T, 2, 4, 4, "bfloat16", throughout=True)
        for contender, temp_bytes in (("scanrnn", 3), ("lax_scan", 6)):
            row = Row(machine, case, "train", contender)
            rows.append(_record(row, text, temp_bytes))
    failed = Row("v5e", Case("gru", 5, 2, 4, 4), "train", "scanrnn").as_json()
    rows.append(failed | {"error": "RuntimeError: too large"})
    about = {"date": "2026-01-01", "commit": "0123456789ab", "dirty": False}
    return about | {"versions": {"jax": "1.2.3"}, "rows": rows}


def test_step_costs_of_both_loops_and_those_beside():
    rows = _results()["rows"]
    h100, v5e = (
        next(r for r in rows if r["machine"] == machine) for machine in ("h100", "v5e")
    )
    # The reverse loop of this program has no known trips, so it counts once.
    assert summary.per_step(h100) == (5, 2 / 5, 1)
    assert summary.per_step(v5e) == (788, 7 * 788 / 28, 0)
    assert summary.per_step(v5e | {"mode": "forward"}) == (788, None, 1)


def test_loop_over_chunks_and_the_one_in_it_are_one_over_time():
    """There are eight chunks of thirty-two steps, and a trip has eight steps."""
    chunks = [(0, 8, 186), (1, 4, 44), (0, 8, 330), (1, 4, 73), (1, 300, 1)]
    names = ("depth", "trips", "launches")
    loops = [dict(zip(names, loop, strict=True)) for loop in chunks]
    record = {"machine": "h100", "mode": "train", "case": {"T": 256}, "loops": loops}
    assert summary.per_step(record) == (44 / 8, 73 / 8, 1)


def test_aims_are_measured_and_judged():
    rows = _results()["rows"]
    for aim in aims.AIMS:
        number = aim.number(rows)
        assert number is not None, aim.text
        assert aim.met(rows) is (number <= aim.bound)
        assert aim.number([]) is None
    numbers = {aim.text: aim.number(rows) for aim in aims.AIMS}
    assert numbers["NVIDIA H100, train: temporaries / lax.scan's, worst"] == 0.75
    assert numbers["NVIDIA H100, train: other loops than those two, worst"] == 1
    half = "TPU v5e, train, all bf16: temporaries / lax.scan's, geometric mean"
    assert numbers[half] == 0.5


def test_aims_know_no_cycles_of_a_program_with_its_own_kernel():
    rows = _results()["rows"]
    assert len(summary.ratios(rows, "v5e", "cycles")) == 3
    next(r for r in rows if r["machine"] == "v5e")["kernels"] = 1
    assert len(summary.ratios(rows, "v5e", "cycles")) == 2


def test_report_regenerates_from_the_file_alone(tmp_path):
    source = tmp_path / "compiled.json"
    source.write_text(json.dumps(_results()))
    written = report.write(source)
    assert written == tmp_path / "compiled.md"
    assert (tmp_path / "compiled.png").stat().st_size > 1000
    text = written.read_text()
    assert "jax 1.2.3" in text and "0123456789ab" in text
    assert "RuntimeError: too large" in text
    for aim in aims.AIMS:
        assert aim.text in text
    assert "| ln_lstm T=28 B=2 H=4 f32 | 788 + 197 | 788 + 197 | - | 0 | " in text
    assert "      768  dear " in text
    assert "| Kalman filter | 27,680? (1.00) | 0.0 (0.75) | 1.5 (1.00) |" in text


def test_committed_report_is_that_of_the_committed_numbers(tmp_path):
    kept = run.ROOT / "benchmarks" / "results" / "compiled.json"
    source = tmp_path / kept.name
    source.write_bytes(kept.read_bytes())
    assert report.write(source).read_text() == kept.with_suffix(".md").read_text()


def test_suite_has_every_cell_and_size_on_both_machines():
    rows = suite.rows()
    assert len({row.name for row in rows}) == len(rows)
    assert {row.case.program for row in rows if isinstance(row.case, ProgramCase)} == {
        *programs.NOT_WORSE,
        *programs.STACKED,
    }
    for machine in ("h100", "v5e"):
        trained = {
            (row.case.cell, (row.case.T, row.case.B, row.case.H))
            for row in rows
            if (row.machine, row.mode) == (machine, "train")
            and isinstance(row.case, Case)
        }
        assert trained == {(cell, size) for cell in suite.CELLS for size in suite.SIZES}


def test_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    asked = []

    class Fake(Worker):
        def measure(self, row, **request):
            asked.append(row.name)
            return _record(row, H100 if row.machine == "h100" else V5E, 1)

    monkeypatch.setattr(run, "Worker", Fake)
    wanted = suite.rows()[:3] + suite.rows()[-2:]
    monkeypatch.setattr(suite, "rows", lambda: wanted)
    path = tmp_path / "results" / "compiled.json"
    results = run.run(path, say=lambda text: None)
    assert [Row.of(record) for record in results["rows"]] == wanted
    assert sorted(asked) == sorted(row.name for row in wanted)
    kept = json.loads(path.read_text())
    assert kept == json.loads(json.dumps(results))
    asked.clear()
    kept["rows"][1]["source"] = "another"
    kept["rows"][3]["error"] = "RuntimeError"
    path.write_text(json.dumps(kept))
    run.run(path, say=lambda text: None)
    assert sorted(asked) == sorted([wanted[1].name, wanted[3].name])


def test_worker_whose_compiler_dies_says_so(monkeypatch):
    monkeypatch.setattr(workers.sys, "executable", shutil.which("false"))
    row = suite.rows()[0]
    with contextlib.closing(Worker(row.machine)) as worker:
        record = worker.measure(row)
    assert Row.of(record) == row
    assert record["error"] == "the compiler ended its process: without a word"


# Cell, machine, T, B, and D=H, with products in bfloat16 (all numbers if True). Then
# launches or cycles of a step in the forward loop and in the reverse loop, the number
# of other loops, and temporaries in MB.
LIMITS = {
    ("lstm", "h100", 30, 32, 512): (2.8, 3.5, 0, 24),
    ("elman", "h100", 30, 32, 512): (2.5, 2.5, 0, 9),
    ("ln_lstm", "h100", 30, 32, 512): (5.6, 10.1, 0, 63),
    ("ln_lstm", "h100", 256, 64, 1024): (5.6, 10.3, 0, 740),
    ("lstm", "v5e", 30, 32, 512): (3_600, 6_200, 0, 1),
    ("gru", "v5e", 30, 32, 512): (3_800, 7_000, 0, 1),
    ("ln_lstm", "v5e", 30, 32, 512): (26_000, 37_500, 0, 2),
    ("lstm", "v5e", 1024, 16, 768): (5_100, 10_800, 0, 135),
    ("lstm", "h100", 256, 64, 1024, True): (2.6, 3.6, 0, 310),
}


def prepare(machine, monkeypatch):
    """Skip a test whose compiler is not there; take away the flags of other tests."""
    if missing := run.missing(machine):
        pytest.skip(f"not installed: {', '.join(missing)}; see `make test-compiled`")
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.fixture(scope="module")
def compilers():
    """A process for each machine, as for the pages; the first test starts it."""
    made = {}
    yield lambda machine: made.setdefault(machine, Worker(machine))
    for worker in made.values():
        worker.close()


@pytest.fixture
def measured(compilers, monkeypatch):
    def measure_(row):
        prepare(row.machine, monkeypatch)
        record = compilers(row.machine).measure(row, top=100)
        assert "error" not in record, record["error"]
        return record

    return measure_


def printed(module, machine, *given):
    """The lines that a module of the tests prints if it runs for a machine."""
    call = [sys.executable, "-m", f"tests.{module}", *given]
    env = os.environ | targets.environment(machine) | {"PYTHONPATH": str(workers.ROOT)}
    done = subprocess.run(
        call, cwd=workers.ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


THUNKS = """\
000: kCommandBuffer [source | next=004 (1)]
    001: kCopy         [source | sink] kCopy
    002: kCustomKernel [source | sink] broadcast grid: [1, 1, 1]
003: kCopy          [prev=000 (1) | next=004 (1)] kCopy
004: kWhile         [prev=003 (1) | sink]
condition:
    005: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | sink]
        006: kCustomKernel [source | next=007 (1)] gemm grid: [1, 1, 1]
        007: kCustomKernel [prev=006 (1) | sink] add grid: [1, 1, 1]
    008: kDynamicSliceFusion [prev=000 (1) | sink] params=1, results=1
        009: kCopy [source | sink] kCopy
    010: kWhile [prev=008 (1) | sink]
    condition:
        011: kCustomKernel [source | sink] compare grid: [1, 1, 1]
      body:
        012: kCustomKernel [source | sink] gemm grid: [1, 1, 1]
"""


def test_graph_is_one_start_by_the_host():
    found = thunks.starts(thunks.parse(THUNKS), iter([5, 3]))
    # For each loop, the condition and its copy to the host run once more than the body.
    inner = thunks.Starts(2 * 4 + 3, 2 * 4 + 3)
    body = thunks.Starts(1 + 1 + inner.host, 2 + 1 + inner.kernels)
    assert found == thunks.Starts(
        2 + 2 * 6 + 5 * body.host, 3 + 2 * 6 + 5 * body.kernels
    )
    assert found.microseconds == pytest.approx(3 * found.host + 1.3 * found.kernels)


@pytest.mark.slow
def test_trip_of_steps_is_one_start_by_the_host(measured):
    """`lax.scan` has ten starts or more for each step."""
    row = Row("h100", Case("lstm", 30, 32, 512, 512), "train", LOOPS)
    ours = measured(row)
    theirs = measured(row._replace(contender="lax_scan"))
    assert ours["host_starts"] <= 30 and theirs["host_starts"] >= 10 * 30
    assert ours["device_kernels"] <= 7.5 * 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "limited", LIMITS, ids=["-".join(map(str, key)) for key in LIMITS]
)
def test_loops_do_not_grow(limited, measured):
    cell, machine, T, B, H, *throughout = limited
    case = Case(cell, T, B, H, H, "bfloat16", throughout=any(throughout))
    record = measured(Row(machine, case, "train", LOOPS))
    lines = [
        line for loop in record["loops"] for line in report.hot_lines(loop, machine)
    ]
    found = (*summary.per_step(record), record["temp_bytes"] / 1e6)
    for number, limit in zip(found, LIMITS[limited], strict=True):
        assert number <= limit, "\n".join([str(found), *lines])


@pytest.mark.slow
def test_decoder_keeps_the_products_of_one_step(measured):
    """XLA once computed `c` from the products of all steps of a trip: 8.2 MB."""
    row = Row("h100", ProgramCase("attention decoder"), "forward", "scanrnn")
    record = measured(row)
    assert record["temp_bytes"] < 5e6
    assert record["launches"] <= 214


# Machines, features and cells. `*` in the place of the names is every cell: half an
# hour for a TPU. With 512 features each program of a GPU has a slice of them.
COMPILED = [
    ("v5e", 20, "lstm,lstm-norm,gru,indrnn,rhn-3"),
    ("v5p", 20, "lstm,lstm-norm"),
    ("h100", 32, "indrnn,lru,sru,elman,lstm,gru"),
    ("h100", 512, "elman,lstm,lstm-norm,gru"),
]


DTYPES = "float32,bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "features", "names"), COMPILED)
def test_kernels_compile(machine, features, names, monkeypatch):
    """One process compiles both dtypes."""
    prepare(machine, monkeypatch)
    given = machine, names, DTYPES, str(features)
    lines = [line.split() for line in printed("compile_kernels", machine, *given)]
    every = itertools.product(DTYPES.split(","), names.split(","))
    assert [(dtype, name) for name, dtype, *_ in lines] == [*every]
    for *which, made, loops in lines:
        assert int(made) >= 1, which
        assert machine != "h100" or (made, loops) == ("2", "0"), which


@pytest.mark.slow
def test_row_of_two_cores_has_the_kernels_of_one_core_beside_it(monkeypatch):
    prepare(targets.V5P, monkeypatch)
    name, page = "v5p-lstm-T30-B32-D512-H512-bfloat16-throughout", kernels.page()
    variables = functools.partial(page.environment, name)
    record = apart.record(page.module, name, variables, page.limit)
    assert "error" not in record, record["error"]
    for half, whole in zip(record["kernels"], record["on_one_core"], strict=True):
        assert half["name"] == whole["name"]
        assert half["step"] < whole["step"]  # bundles of half of the batch


@pytest.mark.slow
def test_chunks_of_a_delta_rule_are_two_kernels_that_keep_most_in_registers(
    monkeypatch,
):
    prepare("h100", monkeypatch)
    name, page = "chunks of a gated delta rule", gpu_kernels.page()
    variables = functools.partial(page.environment, name)
    record = apart.record(page.module, name, variables, page.limit)
    assert "error" not in record, record["error"]
    assert record["starts"]["pallas_gpu"] == 1
    # A whole state in a program spills 5,028 bytes of a thread forward. A reverse loop
    # that also computes the gradients of time inputs spills 8,056.
    spilled = {kernel["name"]: kernel["spilled"] for kernel in record["kernels"]}
    assert spilled["forward"] <= 2_000 and spilled["reverse"] <= 600


@pytest.mark.slow
def test_operations_that_a_plan_names_are_in_no_graph(monkeypatch):
    """XLA's compiler decides: a loop without them starts one graph in each trip."""
    prepare("h100", monkeypatch)
    lines = printed("compile_graphs", "h100")
    beside = dict(line.partition("\t")[::2] for line in lines)
    assert [*beside] == [*compile_graphs.NAMED, *compile_graphs.OTHERS]
    assert {name for name in beside if beside[name]} == {*compile_graphs.NAMED}
