"""Numbers that the pages quote are those of the results."""

import json
import re

import pytest

from benchmarks import aims, gains, report
from benchmarks.compiled import summary
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


INTERVAL = r"\d+\.\d+ \[\d+\.\d+, \d+\.\d+\]"


def test_ratios_with_intervals_stand_in_a_report():
    reports = "\n".join(path.read_text() for path in gains.RESULTS.glob("*.md"))
    start, end = gains.MARKS
    before, _, rest = text("docs/benchmarks.md").partition(start)
    written = re.findall(INTERVAL, before + rest.partition(end)[2])
    assert len(written) > 60
    assert not [ratio for ratio in written if ratio not in reports]
