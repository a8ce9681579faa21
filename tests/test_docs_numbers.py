"""Numbers that the pages quote are those of the results."""

import json
import re

import pytest

from benchmarks import aims, gains, measure, report, suite
from benchmarks.cases import MODES
from benchmarks.compiled import summary
from benchmarks.parallel.loops import MEMORIES
from benchmarks.programs import ORIGINAL, OURS
from tests.test_house import ROOT

ROWS = json.loads((ROOT / "benchmarks" / "results" / "compiled.json").read_text())[
    "rows"
]
MACHINES = ("h100", "v5e")
SIZES = {"T": 256, "B": 64, "H": 1024, "dtype": "bfloat16"}


def text(name):
    return " ".join((ROOT / name).read_text().split())


def compiled(machine, what):
    """Mean and worst of a cost, divided by `lax.scan`'s."""
    ratios = summary.ratios(ROWS, machine, what)
    return aims.geometric_mean(ratios), max(ratios)


def large(machine, cell, throughout=False):
    """The training step of a large layer, by contender."""
    wanted = SIZES | {"cell": cell, "throughout": throughout}
    for case in summary.cases(ROWS, machine, "train"):
        sizes = next(iter(case.values()))["case"]
        if wanted.items() <= sizes.items():
            return case
    raise KeyError(wanted)


def over_scan(machine, what, cell):
    return summary.ratio(large(machine, cell), what, "scanrnn", "lax_scan")


def test_page_of_benchmarks_says_what_a_large_lstm_costs():
    page, lstm = text("docs/benchmarks.md"), large("h100", "lstm")
    ours, theirs = (lstm[w]["launches"] for w in ("scanrnn", "lax_scan"))
    launches, cycles = (
        over_scan("h100", "launches", "lstm"),
        over_scan("v5e", "cycles", "lstm"),
    )
    steps = summary.per_step(lstm["lax_scan"]).total
    forward, reverse = lstm["scanrnn"]["loops"]
    for loop in (forward, reverse):
        assert sum("pallas_call" in one["path"] for one in loop["hot"]) == 1
    assert forward["trips"] == reverse["trips"]
    assert (
        f"launches {ours:,} kernels for the H100, {launches:.2f} of the {theirs:,} of "
        f"`lax.scan` ({steps:.0f} per step): one kernel of ours runs all steps of a "
        f"chunk, and there are {forward['trips']} chunks. For the TPU it needs "
        f"{cycles:.2f} of the cycles"
    ) in page


def test_page_of_benchmarks_says_what_all_sizes_cost():
    page = text("docs/benchmarks.md")
    (launches, most), (cycles, longest) = (
        compiled("h100", "launches"),
        compiled("v5e", "cycles"),
    )
    assert (
        f"sizes is {launches:.2f} of the launches and {cycles:.2f} of the cycles, the "
        f"worst case {most:.2f} and {longest:.2f}."
    ) in page
    memory = [compiled(machine, "temp_bytes")[0] for machine in MACHINES]
    words = "are {:.2f} of `lax.scan`'s on the H100 and {:.2f} on the TPU"
    assert words.format(*memory) in page
    of_cells = [
        over_scan(m, "temp_bytes", c) for c in ("lstm", "ln_lstm") for m in MACHINES
    ]
    words = "{:.2f} and {:.2f} for that LSTM, {:.2f} and {:.2f} with layer norms"
    assert words.format(*of_cells) in page


@pytest.mark.parametrize("name", ["README.md", "docs/limits.md", "docs/benchmarks.md"])
def test_pages_say_how_long_compiling_takes(name):
    page = text(name)
    for machine in MACHINES:
        mean, most = compiled(machine, "compile_seconds")
        for number in (f"{mean:.1f} times", f"{most:.{1 if most < 10 else 0}f}"):
            assert re.search(rf"(?<![\d.]){number}(?![\d.]\d)", page), (machine, number)


@pytest.mark.parametrize("name", ["README.md", "docs/limits.md"])
def test_pages_say_how_long_compiling_takes_on_a_cpu(name):
    means = [aims.geometric_mean(compile_ratios(path)) for path in gains.TIMED]
    assert f"{min(means):.1f} to {max(means):.1f} times" in text(name)


def compile_ratios(path):
    rows = json.loads(path.read_text())["rows"]
    return aims.ratios(rows, None, "train", *gains.PAIR, "compile_seconds")


def test_page_of_benchmarks_says_what_memory_training_takes():
    means = [aims.geometric_mean(memory_ratios(path)) for path in gains.TIMED]
    ends = f"({min(means):.2f} to {max(means):.2f} on the four machines)"
    assert ends in text("docs/benchmarks.md")


def memory_ratios(path):
    _, rows = gains.planned(path)
    return aims.ratios(rows, None, "train", *gains.PAIR, "temp_bytes")


@pytest.mark.parametrize("path", gains.TIMED, ids=lambda path: path.stem)
def test_page_of_benchmarks_says_what_large_states_take(path):
    large = ("selective scan (Mamba)", "RWKV's state", "chunks of a gated delta rule")
    programs = {
        row["case"]["program"]: row["contenders"]
        for row in report.load(path)[1]
        if row["section"] == "programs"
    }
    page = text("docs/benchmarks.md").replace(" MB", "")
    for name in large:
        ours, theirs = (
            programs[name][side]["train"]["temp_bytes"] / 1e6
            for side in (OURS, ORIGINAL)
        )
        assert f"{ours:,.0f} instead of {theirs:,.0f}" in page


def programs_of(machine, mode):
    """Other people's programs on a machine, by name: theirs and ours."""
    found = {}
    for case in summary.cases(ROWS, machine, mode, programs=True):
        name = case["scanrnn"]["case"]["program"]
        found[name] = [case[who] for who in ("scanrnn", "lax_scan")]
    return found


def test_page_of_benchmarks_says_what_programs_cost():
    page = text("docs/benchmarks.md")
    launches, cycles = (
        max(summary.ratios(ROWS, machine, what, programs=True))
        for machine, what in (("h100", "launches"), ("v5e", "cycles"))
    )
    assert f"at most {launches:.2f} of the kernels that they launch" in page
    assert f"at most {cycles:.2f} of the cycles" in page
    beyond = max(
        aims.beyond(*(side["temp_bytes"] for side in pair))
        for pair in programs_of("h100", "train").values()
    )
    assert f"more than {beyond:.2f} of the temporaries" in page
    name = "two LSTMs in one step"
    ours, theirs = (side["cycles"] for side in programs_of("v5e", "train")[name])
    assert f"train in {ours / theirs:.2f} of the cycles on the TPU" in page
    taken = [side["temp_bytes"] / 1e6 for side in programs_of("h100", "forward")[name]]
    words = "takes {:.1f} MB on the H100, and {:.1f} MB without scanrnn"
    assert words.format(*taken) in page


def test_page_of_benchmarks_says_where_memory_gains_least():
    page = text("docs/benchmarks.md")
    half = [row for row in ROWS if row["case"].get("throughout")]
    means = [
        aims.geometric_mean(summary.ratios(half, machine, "temp_bytes"))
        for machine in MACHINES
    ]
    assert "throughout they are {:.2f} and {:.2f}".format(*means) in page
    elman = [row for row in ROWS if row["case"].get("cell") == "elman"]
    found = summary.ratios(elman, "h100", "temp_bytes")
    assert f"is {min(found):.1f} to {max(found):.1f} on the H100" in page
    more = [
        case["scanrnn"]["temp_bytes"] / 1e6
        for case in summary.cases(ROWS, "v5e", "train")
        if (summary.ratio(case, "temp_bytes", "scanrnn", "lax_scan") or 0) > 1.01
    ]
    words = f"at most {max(more):.1f} MB outside of it, up to"
    assert f"{words} {compiled('v5e', 'temp_bytes')[1]:.1f} times" in page


def test_page_of_benchmarks_says_what_is_left_where_xla_runs_the_loops():
    """There a loop over steps is inside a loop over chunks; kernels have the steps."""
    cases = list(summary.cases(ROWS, "h100", "train"))
    left = [
        summary.ratio(case, "launches", "scanrnn", "lax_scan")
        for case in cases
        if any(loop["depth"] for loop in case["scanrnn"]["loops"])
    ]
    assert 0 < len(left) < len(cases) / 2
    page = text("docs/benchmarks.md")
    assert f"loops, {min(left):.2f} to {max(left):.2f} of the launches remain" in page


def test_page_of_benchmarks_says_what_planned_loops_of_rwkv7_take():
    found = []
    for machine in ("intel-xeon-amx-bf16", "amd-epyc-zen-4-avx512", "amd-epyc"):
        path = gains.RESULTS / f"parallel-{machine}-2-cores.json"
        rows = json.loads(path.read_text())["rows"]
        (row,) = (row for row in rows if row["name"] == "RWKV-7")
        pair = "planned loops", "lax.scan"
        intervals = (measure.ratio_interval(row, mode, *pair) for mode in MODES)
        found.append([interval.value for interval in intervals])
    train, forward = zip(*found, strict=True)
    words = "{:.2f} (Intel Xeon), {:.2f} (Zen 4) and {:.2f} (AVX2)"
    page = text("docs/benchmarks.md")
    assert words.format(*train) in page
    words = "in training, and {:.2f}, {:.2f} and {:.2f} in a forward pass"
    assert words.format(*forward) in page


def test_page_of_benchmarks_says_how_fast_a_product_is():
    peak = {
        path.stem: report.load(path)[0]["machine_info"]["limits"]["gemm_float32"]
        for path in gains.TIMED
    }
    fast, slow = (peak[f"amd-epyc-{m}2-cores"] for m in ("avx512-", "zen-4-avx512-"))
    words = "reached {:.0f} GFLOP/s in a float32 product, more than twice"
    assert words.format(round(fast, -2)) in text("docs/benchmarks.md")
    assert fast > 2 * slow


def test_page_of_benchmarks_says_what_chunks_of_residuals_take():
    chunked, seconds, taken = suite.LADDER["chunked"], [], []
    for path in gains.TIMED:
        for row in report.load(path)[1]:
            if row["section"] == "lengths":
                pair = row, "train", chunked, "scanrnn"
                taken.append(measure.ratio(*pair, "temp_bytes"))
                if measure.is_known(*pair):
                    seconds.append(measure.ratio(*pair))
    page = text("docs/benchmarks.md")
    assert f"takes {min(taken):.2f} to {max(taken):.2f} of what we take" in page
    assert f"takes {min(seconds):.1f} to {max(seconds):.1f} times as long" in page


def test_pages_say_how_long_memories_in_chunks_take_to_compile():
    rows_ = json.loads((gains.RESULTS / "parallel.json").read_text())["rows"]
    seconds = {
        (r["machine"], r["name"], r["form"]): r for r in rows_ if "error" not in r
    }
    ends = {}
    for machine in MACHINES:
        found = [
            seconds[machine, name, "products of chunks"]["compile_seconds"]
            / seconds[machine, name, "lax.scan"]["compile_seconds"]
            for name in MEMORIES
        ]
        ends[machine] = round(min(found)), round(max(found))
    words = "take {} to {} times as long for an H100, and {} to {} times for a TPU"
    assert words.format(*ends["h100"], *ends["v5e"]) in text("docs/limits.md")
    least, most = (end(sum(ends.values(), ())) for end in (min, max))
    assert f"{least} to {most} times for matrix memories" in text("README.md")


def test_page_of_benchmarks_says_what_slower_memories_save():
    names = [f"cells.{name}" for name in ("deltanet", "mamba2", "mlstm")]
    _, rows = report.load(gains.RESULTS / "amd-epyc-2-cores.json")
    chosen = [row for row in rows if row["case"].get("program") in names]
    pair = "train", OURS, ORIGINAL
    assert all(measure.ratio_interval(row, *pair).low > 1 for row in chosen)
    found = [measure.ratio(row, *pair, "temp_bytes") for row in chosen]
    assert len(found) == len(names)
    words = f"took {min(found):.2f} to {max(found):.2f} of the temporary memory there"
    assert words in text("docs/benchmarks.md")


def test_page_of_limits_says_where_onnxruntime_is_faster():
    path = gains.RESULTS / "latency-intel-xeon-amx-bf16-2-cores.json"
    rows = json.loads(path.read_text())["rows"]
    faster = [r for r in rows if r["us"]["onnxruntime"][0] < r["us"]["scanrnn"][0]]
    plain = [row for row in rows if row["norm"] is None]
    assert all(row in faster for row in plain if row["H"] >= 256)
    assert not all(row in faster for row in plain if row["inline"] and row["H"] < 256)
    elsewhere = [row for row in rows if not row["inline"]]
    assert all(row in faster for row in elsewhere if row["norm"] is None)
    assert all(row in faster for row in elsewhere if row["steps"] == 1)
    page = text("docs/limits.md")
    assert "than scanrnn from 256 features on. If JAX runs calls in another" in page
    assert path.with_suffix(".md").name in page


INTERVAL = r"\d+\.\d+ \[\d+\.\d+, \d+\.\d+\]"


def test_ratios_with_intervals_stand_in_a_report():
    reports = "\n".join(path.read_text() for path in gains.RESULTS.glob("*.md"))
    start, end = gains.MARKS
    before, _, rest = text("docs/benchmarks.md").partition(start)
    written = re.findall(INTERVAL, before + rest.partition(end)[2])
    assert len(written) > 60
    assert not [ratio for ratio in written if ratio not in reports]
