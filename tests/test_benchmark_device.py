"""What is timed on a GPU, and the page of its numbers."""

import json
import multiprocessing
import pathlib
import threading

import jax
import pytest

import scanrnn
from benchmarks.device import page, rows, worker
from benchmarks.parallel import loops
from benchmarks.parallel import rows as parallel
from benchmarks.programs._base import normal

RESULTS = sorted(pathlib.Path("benchmarks/results").glob("device-*.json"))


def test_a_device_has_results():
    assert RESULTS


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_page_of_a_device_is_that_of_the_committed_numbers(path):
    results = json.loads(path.read_text())
    assert path.with_suffix(".md").read_text() == page.markdown(results)
    assert all(record["disturbance"] <= 0.1 for record in results["rows"])
    assert {record["name"] for record in results["rows"]} <= {
        r.name for r in rows.rows()
    }


def test_docs_quote_the_numbers_of_a_device():
    (results,) = (json.loads(path.read_text()) for path in RESULTS)
    text = pathlib.Path("docs/benchmarks.md").read_text()
    assert page.short(results) in text
    text = " ".join(text.split())
    single = {
        row["name"]: {way: times["milliseconds"] for way, times in row["ways"].items()}
        for row in results["single"]
    }
    for names, word, over in (
        (("leaky", "LRU", "minGRU", "SRU"), "{:.3f} to {:.3f} of the", rows.SCAN),
        (("leaky", "LRU", "minGRU"), "{:.2f} to {:.2f} of that of", rows.HAND),
    ):
        found = [
            ways[rows.SCANS] / ways[over]
            for name, ways in single.items()
            if name.startswith(names)
        ]
        assert f"in {word.format(min(found), max(found))}" in text
    (mlstm,) = (ways for name, ways in single.items() if name.startswith("mLSTM"))
    assert f"in {mlstm[rows.CHUNKS] / mlstm[rows.SCAN]:.3f} of the time" in text
    mingru = single["minGRU, T=2048 B=8 D=32"]
    text += " ".join(pathlib.Path("docs/parallel_in_time.md").read_text().split())
    found = [mlstm[way] for way in (rows.CHUNKS, rows.LOOPS, rows.SCAN)]
    words = "trained in {:.1f} ms by chunks, {:.0f} ms by planned loops, and {:.0f} ms"
    assert words.format(*found) in text
    ways = rows.SCANS, rows.HAND, rows.LOOPS, rows.SCAN
    words = "took {:.2f} ms in parallel, {:.2f} ms by hand, {:.1f} ms in planned loops"
    assert f"{words} and {{:.0f}} ms".format(*(mingru[way] for way in ways)) in text
    lstm, gru = (
        single[f"{cell}, T=1024 B=2 D=256 H=128, bfloat16"][rows.KERNEL]
        for cell in ("LSTM", "GRU")
    )
    assert f"took {lstm:.1f} ms to train the bfloat16 LSTM" in text
    assert f"and {gru:.1f} ms for the GRU" in text


LOOPS = {
    "leaky sum with resets": (2048, 8, 32),
    "minGRU": (2048, 8, 32),
    "LRU": (2048, 8, 32),
    "SRU": (2048, 8, 32),
    "mLSTM": (1024, 4, 512),
}


@pytest.mark.parametrize("name", LOOPS)
def test_estimates_of_loops_are_near_the_times_of_an_h100(name):
    """Loops of a millisecond or more; a call takes a tenth of one."""
    (results,) = (json.loads(path.read_text()) for path in RESULTS)
    T, B, D = LOOPS[name]
    start = f"{name}, T={T} B={B} D={D}"
    (ways,) = (r["ways"] for r in results["single"] if r["name"].startswith(start))
    program = parallel.made(name, T, B, D, normal).program
    plans, lax_scan = [], jax.lax.scan

    def scan(step, init, xs):
        plans.append(scanrnn.plan(step, init, xs, machine="h100"))
        return lax_scan(step, init, xs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops.lax, "scan", scan)
        jax.eval_shape(program.apply, program.params, program.inputs)
    (plan,) = plans
    seconds = {c.name: c.seconds for c in plan.candidates if c.refusal is None}
    fastest = min(ways.keys() & seconds.keys(), key=lambda w: ways[w]["milliseconds"])
    assert plan.executor.name == fastest
    for way in ways.keys() & seconds.keys() - {"scan"}:
        if ways[way]["milliseconds"] >= 1:
            ratio = 1e3 * seconds[way] / ways[way]["milliseconds"]
            assert 1 / 3 < ratio < 3, (way, ratio)


def test_rows_have_names_of_their_own():
    names = [row.name for row in rows.rows()]
    assert len({*names}) == len(names) > 20


def test_a_request_that_fails_comes_back_as_an_error():
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=worker.serve, args=(theirs,))
    thread.start()
    answer = worker.ask(ours, ("timed", "nothing", 0.0, 1), 60)
    assert answer == {"error": "KeyError: 'nothing'"}
    ours.send(("unknown",))  # an answer that nobody waits for is left out
    answer = worker.ask(ours, ("prepare", "nothing"), 60)
    assert answer["error"].startswith("ValueError: no row 'nothing'")
    ours.send(None)
    thread.join()
    theirs.close()
    assert worker.ask(ours, ("about",), 60) == {"error": "its process died"}


@pytest.mark.slow
def test_a_row_is_compiled_checked_and_timed():
    known: dict = {}
    told = worker.prepare(known, "cells.slstm")
    assert {*told} == {rows.SCAN, rows.OURS, rows.KERNEL}
    assert all(words.startswith("ok") for words in told.values())
    record = worker.timed(known, "cells.slstm", 0.0, 2)
    assert not known
    assert all(found["train"]["rounds"] >= 2 for found in record["contenders"].values())
    assert "cells.slstm" in page.line(record)
