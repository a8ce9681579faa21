"""Tables in the form of published documents: check their numbers, and run them."""

import copy
import dataclasses
import json
import pathlib

import jax
import pytest

from benchmarks import documents, gains, measure, newest, ratios, report, suite
from benchmarks.cases import MODES, Case

FIXTURE = pathlib.Path(__file__).parent / "data" / "benchmark_results.json"
PEAKS = {"gemm_float32": 100.0, "gemm_bfloat16": 200.0, "memory": 10.0}
SECTIONS = (
    *("frameworks", "custom", "seed", "batches", "manual", "lengths", "anchors"),
    "forum",
)


@pytest.fixture(autouse=True)
def _thirty_two_bits():
    with jax.enable_x64(False):
        yield


def _records(section):
    _, records = report.load(FIXTURE)
    return copy.deepcopy([r for r in records if r["section"] == section])


def _lines(part, start):
    """The cells of each line of a table that starts with `start`."""
    chosen = [line for line in part.splitlines() if line.startswith(f"| {start}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in chosen]


def test_frameworks_are_timed_per_example_beside_published_numbers():
    _, *parts = documents.frameworks(_records("frameworks"))
    titles = [part.splitlines()[0].strip("*").split(",")[0] for part in parts]
    assert titles == ["compile seconds", "training", "forward"]
    ((_, *compiled),), ((_, *train),), ((_, *forward),) = (
        _lines(part, "lstm B=32 H=512") for part in parts
    )
    # scanrnn, lax.scan, torch, Flax; then Theano, Torch, TensorFlow.
    assert compiled == ["0.50", "0.40", "-", "0.50", "7.59", "0.19", "3.97"]
    assert train[:3] == ["31.25", "62.5", "39.06"]
    assert train[-3:] == ["619.4", "610.7", "886.9"]
    assert forward[-3:] == ["200.9", "201.7", "324.9"]


def test_frameworks_have_published_numbers_for_every_case():
    rows = suite.rows("frameworks")
    assert len(rows) == len(documents.published()) == 12
    for row in rows:
        assert (row.case.cell, row.case.B, row.case.H) in documents.published()
        assert (row.case.T, row.case.D, row.case.last) == (30, row.case.H, True)


def test_batches_are_shown_for_one_sequence_too():
    records = _records("batches")
    train, _ = documents.batches(records)
    # Our time is one millisecond for 1 sequence and for 128.
    assert _lines(train, "B=1 ")[0][1] == "1; 1; 1,000"
    assert _lines(train, "B=128 ")[0][1] == "1; 0.00781; 128,000"
    assert _lines(train, "**speed-up")[0][1:] == ["**128.0**"] * 3
    for record, low in zip(records, (0.0008, 0.001), strict=True):
        bounds = {"low": low, "high": 0.0016}
        record["contenders"]["scanrnn"]["train"] |= bounds
    (gains,) = _lines(documents.batches(records)[0], "**speed-up")
    assert gains[1] == "**128.0** [64.0, 204.8]"
    records[0]["settled"] = False
    assert _lines(documents.batches(records)[0], "**speed-up")[0][1:] == ["-"] * 3


def test_lengths_show_time_and_temporaries_of_each_sequence():
    train, _ = documents.lengths(_records("lengths"))
    assert "| steps | scanrnn | lax_scan | torch | chunked |" in train
    ours, theirs, torch = _lines(train, "T=1024")[0][1:4]
    assert (ours, torch) == ("1 (0.977); 0.001", "1.25 (1.22)")
    assert theirs == "2 (1.95); 0.0025"


def test_case_of_the_last_output_has_one_target_and_writes_less():
    case = Case("lstm", T=5, B=3, D=2, H=4, last=True)
    whole = dataclasses.replace(case, last=False)
    assert case.name == whole.name + "-last"
    assert whole.traffic("forward") - case.traffic("forward") == 4 * 4 * 3 * 4
    assert case.flops("train") == whole.flops("train")


def test_variants_have_a_mean_of_each_and_their_operations():
    records = _records("custom")
    contenders_ = records[0]["contenders"]
    contenders_["lax_scan"]["train"]["operations"] = [26.0, 17.0]
    contenders_["scanrnn"]["train"]["operations"] = [14.0, 2.5]
    *_, means, operations = documents.variants(records)
    ((_, *found),) = _lines(means, "mi_lstm")
    assert found == ["**1.25**", "**0.62**", "**1.25**", "**0.62**"]
    assert _lines(means, "ln_lstm") == [["ln_lstm", "-", "-", "-", "-"]]
    assert _lines(operations, "mi_lstm") == [["mi_lstm", "26 + 17", "14 + 2.5"]]


def chosen(section):
    """The first row of each cell that brings a contender which no other has brought."""
    cells = {row.case.cell: row for row in reversed(suite.rows(section))}
    brought = set()
    for row in sorted(cells.values(), key=lambda row: -len(row.contenders)):
        if not {*row.contenders} <= brought:
            yield row
        brought |= {*row.contenders}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # peers may warn on import
@pytest.mark.parametrize("section", SECTIONS)
def test_sections_of_documents_run_at_tiny_sizes(section):
    records, rows = [], [*chosen(section)]
    # torch compiles the steps of each cell of the forum for half a minute.
    for row in rows[:1] if section == "forum" else rows:
        case = dataclasses.replace(row.case, T=5, B=2, D=3, H=3)
        row = row._replace(case=case)
        race, (entries,) = measure.enter([row], MODES)
        assert all(entry.runs for entry in race.entries)
        race.round()
        record = measure.record(row, race, entries, PEAKS)
        records.append(json.loads(json.dumps(record)))
    text = "\n".join(documents.PAGES.get(section, ratios.page)(records))
    for name in ratios.contenders(records)[1]:
        assert f"| {name} |" in text


def test_page_of_a_newer_jax_has_a_line_for_each_peer_that_ran():
    text = newest.text(gains.TIMED[0])
    assert "| stock cells | train | `lax.scan` | " in text
    assert "torch" not in text.split("\n\n")[1]


def test_page_of_a_newer_jax_is_of_rows_of_the_suite():
    words = newest.CHOSEN.split(" or ")
    names = [row.name for row in suite.rows(*suite.SECTIONS)]
    assert all(any(word in name for name in names) for word in words)
