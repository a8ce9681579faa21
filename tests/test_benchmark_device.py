"""What is timed on a GPU, and the page of its numbers."""

import json
import multiprocessing
import pathlib
import threading

import jax
import jax.numpy as jnp
import pytest

import scanrnn
from benchmarks.compiled.programs import shapes
from benchmarks.contenders.lax_scan import naive
from benchmarks.device import page, rows, worker
from benchmarks.parallel import rows as parallel
from benchmarks.programs._base import normal

RESULTS = sorted(pathlib.Path("benchmarks/results").glob("device-*.json"))
REPORTS = [json.loads(path.read_text()) for path in RESULTS]


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


def test_reports_have_different_rows():
    names = [record["name"] for results in REPORTS for record in results["rows"]]
    assert len({*names}) == len(names)


def milliseconds(start):
    """The times of a training step by the first row of such a name, by contender."""
    return times_of(start, "train")


def test_docs_quote_the_numbers_of_a_device():
    text = pathlib.Path("docs/benchmarks.md").read_text()
    assert page.short(*REPORTS) in text
    for name in ("docs/parallel_in_time.md", "CHANGELOG.md"):
        text += pathlib.Path(name).read_text()
    text = " ".join(text.split())
    affine = [milliseconds(name) for name in rows.AFFINE]
    for word, over in (
        ("in {:.3f} to {:.3f} of the", rows.SCAN),
        ("ours took {:.2f} to {:.2f} times", rows.HAND),
    ):
        found = [ways[rows.OURS] / ways[over] for ways in affine if over in ways]
        assert word.format(min(found), max(found)) in text
    mlstm, mingru = (milliseconds(name) for name in ("mLSTM", "minGRU"))
    assert f"in {mlstm[rows.OURS] / mlstm[rows.SCAN]:.3f} of the time" in text
    found = [mlstm[way] for way in (rows.OURS, rows.LOOPS, rows.SCAN)]
    words = "trained in {:.1f} ms by chunks, {:.0f} ms by planned loops, and {:.0f} ms"
    assert words.format(*found) in text
    ways = rows.OURS, rows.HAND, rows.LOOPS, rows.SCAN
    words = "took {:.2f} ms in parallel, {:.2f} ms by hand, {:.1f} ms in planned loops"
    assert f"{words} and {{:.0f}} ms".format(*(mingru[way] for way in ways)) in text
    lstm, gru = (milliseconds(f"{cell}-T1024-B2") for cell in ("lstm", "gru"))
    words = "train in {:.1f} and {:.1f} ms, by XLA's loops in {:.1f} and {:.1f}"
    ways = rows.OURS, rows.LOOPS
    assert words.format(*(of[way] for way in ways for of in (lstm, gru))) in text


def test_docs_compare_our_kernels_with_others():
    """Rows of which XLA's loops were timed beside what the planner chose."""
    text = " ".join(pathlib.Path("docs/benchmarks.md").read_text().split())
    cases = [case for case, _ in rows._cells() if rows.LOOPS in milliseconds(case.name)]
    slices = [case for case in cases if case.H >= 512 or case.dtype == "float32"]
    slices = [case for case in slices if (case.cell, case.H) != ("gru", 128)]
    assert (len(cases), len(slices)) == (14, 7)
    for some, words in (
        (cases, "took {} times as long to train, and cuDNN {} times as long"),
        (slices, "took {} times as long to train there, and cuDNN {} times"),
    ):
        times = [milliseconds(case.name) for case in some]
        found = [
            [of[way] / of[rows.OURS] for of in times]
            for way in (rows.LOOPS, rows.GRAPH)
        ]
        assert words.format(*(f"{min(f):.1f} to {max(f):.1f}" for f in found)) in text


def times_of(start, mode):
    """Milliseconds of the first row of such a name, by contender."""
    records = [record for results in REPORTS for record in results["rows"]]
    record = next(row for row in records if row["name"].startswith(start))
    found = record["contenders"].items()
    return {who: 1e3 * of[mode]["median"] for who, of in found if mode in of}


def test_docs_say_which_forward_passes_another_way_would_run_faster():
    text = " ".join(pathlib.Path("docs/benchmarks.md").read_text().split())
    ours, loops = map(times_of("ln_lstm-T100", "forward").get, (rows.OURS, rows.LOOPS))
    assert f"by slices: {ours:.2f} ms, and {loops:.2f} by XLA's loops" in text
    ours, kernel = map(times_of("SRU", "forward").get, (rows.OURS, rows.KERNEL))
    assert f"was {ours / kernel:.1f} times as fast by our kernels" in text


def test_docs_say_when_and_with_what_a_device_was_timed():
    text = " ".join(pathlib.Path("docs/benchmarks.md").read_text().split())
    (results,) = REPORTS
    versions = results["machine"]["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("jax", "torch"))
    assert f"({results['date']}, {named})" in text
    rounds = {
        of["train"]["rounds"]
        for record in results["rows"]
        for of in record["contenders"].values()
        if "train" in of
    }
    assert f"in turns, in {min(rounds)} to {max(rounds)} rounds" in text


def test_docs_mark_rows_that_did_not_settle():
    text = page.short(*REPORTS)
    for results in REPORTS:
        for record in results["rows"]:
            marked = f"| {record['name']} (not settled) |" in text
            assert marked != record["settled"]


def test_docs_say_how_far_off_gradients_summed_in_bfloat16_are():
    text = " ".join(pathlib.Path("docs/benchmarks.md").read_text().split())
    pairs = [
        [record["contenders"][who]["gate"]["error"] for who in (rows.SCAN, rows.OURS)]
        for results in REPORTS
        for record in results["rows"]
        if not record["contenders"][rows.SCAN]["gate"]["passed"]
    ]
    theirs, ours = zip(*pairs, strict=True)
    assert len(pairs) == 4
    assert f"were {100 * min(theirs):.0f} to {100 * max(theirs):.0f} % off" in text
    assert max(ours) <= 0.04 and "at most 4 % off" in text


def test_faq_says_how_fast_cudnn_is_beside_ours():
    names = [c.name for c, _ in rows._cells() if c.cell in ("lstm", "gru")]
    times = [times_of(name, "train") for name in names]
    found = [of[rows.OURS] / of[rows.GRAPH] for of in times]
    text = " ".join(pathlib.Path("docs/faq.md").read_text().split())
    assert f"trained in {min(found):.1f} to {max(found):.1f} times cuDNN's" in text


CASES = {case.name: case for case, _ in rows._cells()}
LOOPS = {name: parallel.BOUND for name in rows.AFFINE} | {"mLSTM": rows.MEMORY}


def planned_for(name):
    """The plan of a row for an H100."""
    plans, lax_scan = [], jax.lax.scan

    def scan(step, init, xs):
        plans.append(scanrnn.plan(step, init, xs, machine="h100"))
        return lax_scan(step, init, xs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "scan", scan)
        if name in LOOPS:
            program = parallel.made(name, *LOOPS[name], normal).program
            jax.eval_shape(program.apply, program.params, program.inputs)
        else:
            problem = shapes(CASES[name])
            model = naive(problem, scan)
            jax.eval_shape(model.apply, model.params, problem.xs)
    (plan,) = plans
    return plan


@pytest.mark.parametrize("name", [*CASES, *LOOPS])
def test_estimates_of_loops_are_near_the_times_of_a_gpu(name):
    """Loops of a millisecond or more; a call takes a tenth of one."""
    plan, ways = planned_for(name), milliseconds(name)
    seconds = {c.name: c.seconds for c in plan.candidates if c.refusal is None}
    # What was chosen at the commit of the report: what was not timed by its name.
    named = {rows.LOOPS, rows.KERNEL} - ways.keys()
    ours = ways.pop(rows.OURS)
    ways[named.pop() if len(named) == 1 else plan.executor.name] = ours
    if rows.SCAN in ways:
        ways["scan"] = ways.pop(rows.SCAN)
    timed = ways.keys() & seconds.keys()
    assert plan.executor.name == min(timed, key=ways.__getitem__)
    for way in timed - {"scan"}:
        if ways[way] >= 1:
            assert 1 / 3.5 < 1e3 * seconds[way] / ways[way] < 3.5, way


@pytest.mark.parametrize(("machine", "chosen"), [("h100", "pallas_gpu"), ("a100", "")])
def test_kernels_are_chosen_only_where_they_were_checked(machine, chosen):
    def step(h, x):
        h = jnp.tanh(0.9 * h + x)
        return h, h

    xs = jax.ShapeDtypeStruct((64, 16, 128), "float32")
    h = jax.ShapeDtypeStruct((16, 128), "float32")
    plan = scanrnn.plan(step, h, xs, machine=machine)
    names = {candidate.name for candidate in plan.candidates}
    assert (plan.executor.name == chosen) == ("pallas_gpu" in names) == bool(chosen)


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
