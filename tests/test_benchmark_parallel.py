"""The loops that the benchmarks run in parallel, and the pages of their numbers."""

import functools
import json
import pathlib

import chex
import jax
import pytest

from benchmarks.gate import mean_squared
from benchmarks.parallel import compiled, loops, report, rows, timed
from tests.test_affine_kinds import mostly_slow

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks" / "results"

SMALL = 32, 3, 8


@pytest.fixture(autouse=True)
def _thirty_two_bits():
    with jax.enable_x64(False):
        yield


@pytest.mark.parametrize(
    "name", mostly_slow([*loops.LOOPS, *loops.MEMORIES], {*loops.LOOPS, "DeltaNet"})
)
def test_ways_to_run_a_loop_give_the_same(name):
    loop = rows.made(name, *SMALL)
    program = loop.program

    def run(form):
        apply = loops.function(loop, form)

        def loss(params):
            ys = apply(params, program.inputs)
            return mean_squared(ys, 0.5), ys

        return jax.jit(jax.grad(loss, has_aux=True))(program.params)

    wanted = run(loops.SCAN)
    for form in rows.forms(name, *rows.BOUND)[1:]:
        chex.assert_trees_all_close(run(form), wanted, rtol=1e-4, atol=1e-5)


def test_table_of_the_docs_has_the_launches_on_an_h100():
    rows_ = json.loads((FOLDER / "parallel.json").read_text())["rows"]
    found = {compiled.of(row).key: row for row in rows_}
    text = (FOLDER.parents[1] / "docs" / "parallel_in_time.md").read_text()
    for name in loops.LOOPS:
        shown = [
            found.get(rows.Row("h100", name, *rows.BOUND, form).key)
            for form in (loops.SCAN, loops.PLANNED, loops.OURS, loops.HAND)
        ]
        cells = (f"{row['launches']:,}" if row else "" for row in shown)
        assert f"| {name} | {' | '.join(cells)} |" in text, name


def test_ratios_in_the_docs_are_those_of_the_compiled_rows():
    """Temporaries beside a scan by hand, and how long chunks take to compile."""
    pages, found = FOLDER.parents[1] / "docs", {}
    for row in json.loads((FOLDER / "parallel.json").read_text())["rows"]:
        size = row["T"], row["B"], row["D"]
        found.setdefault((row["machine"], row["name"], size), {})[row["form"]] = row

    def ratios(machine, key, ours, theirs, fits):
        every = [
            forms[ours][key] / forms[theirs][key]
            for (where, _, size), forms in found.items()
            if where == machine
            and {ours, theirs} <= {*forms}
            and fits(size, forms[ours])
        ]
        return min(every), max(every)

    temporaries = functools.partial(
        ratios, "h100", "temp_bytes", loops.OURS, loops.HAND
    )
    text = (pages / "parallel_in_time.md").read_text()
    least, most = temporaries(lambda size, _: size == rows.BOUND)
    assert f"needs {least:.2f} to {most:.2f} of the temporary" in text
    least, most = temporaries(lambda _, row: row["temp_bytes"] > 4e6)
    assert f"and {least:.2f} to {most:.2f} at all sizes" in text
    assert most < 1.03
    least, most = temporaries(lambda _, row: row["temp_bytes"] <= 4e6)
    assert f"at each size: {least:.2f} to {most:.2f}.)" in text
    text = " ".join((pages / "limits.md").read_text().split())
    for machine, words in (("h100", "H100"), ("v5e", "TPU")):
        size = rows.MEMORY[machine]
        least, most = ratios(
            machine,
            "compile_seconds",
            loops.PRODUCTS,
            loops.SCAN,
            lambda s, _, size=size: s == size,
        )
        assert f"{least:.0f} to {most:.0f} times" in text, words


def test_parallel_scans_take_fewer_cycles_of_a_tpu_than_by_hand():
    rows_, found = json.loads((FOLDER / "parallel.json").read_text())["rows"], {}
    for row in rows_:
        if row["machine"] == "v5e" and "cycles" in row:
            size = row["name"], row["T"], row["B"], row["D"]
            found.setdefault(size, {})[row["form"]] = row
    shares = {
        size: v[loops.OURS]["cycles"] / v[loops.HAND]["cycles"]
        for size, v in found.items()
        if {loops.OURS, loops.HAND} <= {*v}
    }
    least, most = min(shares.values()), max(shares.values())
    text = " ".join(
        (FOLDER.parents[1] / "docs" / "parallel_in_time.md").read_text().split()
    )
    assert f"takes {least:.2f} to {most:.2f} of the cycles" in text
    assert most < 1
    narrow = "leaky sum with resets", 2**20, 8, 1
    for form in (loops.OURS, loops.HAND):
        row = found[narrow][form]
        assert f"{row['temp_bytes'] / 1e6:.0f} MB" in text
        assert f"{row['compile_seconds']:.0f} s" in text
        assert f"{row['cycles'] / 1e6:.1f} million" in text


def test_tables_of_the_docs_have_the_costs_of_matrix_memories():
    rows_ = json.loads((FOLDER / "parallel.json").read_text())["rows"]
    found = {compiled.of(row).key: row for row in rows_}
    text = (FOLDER.parents[1] / "docs" / "parallel_in_time.md").read_text()
    forms = loops.SCAN, loops.PLANNED, loops.PRODUCTS
    for name in loops.MEMORIES:
        for machine, key, unit in (("h100", "launches", 1), ("v5e", "cycles", 1e6)):
            keys = [
                rows.Row(machine, name, *rows.MEMORY[machine], form).key
                for form in forms
            ]
            costs = [f"{found[k][key] / unit:,.0f}" for k in keys]
            memory = [f"{found[k]['temp_bytes'] / 1e6:,.0f}" for k in keys]
            line = f"| {name} | {' | '.join(costs)} | {' | '.join(memory)} |"
            assert line in text, line
    seconds = [
        row["compile_seconds"]
        for row in rows_
        if row["name"] in loops.MEMORIES and row["form"] == loops.PRODUCTS
    ]
    assert f"{min(seconds):.0f} to {max(seconds):.0f} s at these sizes" in text


@pytest.mark.parametrize("path", sorted(FOLDER.glob("parallel-*.json")))
def test_table_of_the_docs_has_the_times_of_matrix_memories(path):
    rows_ = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    text = (FOLDER.parents[1] / "docs" / "benchmarks.md").read_text()
    for name in loops.MEMORIES:
        assert report.shares(rows_[name]) in text


def test_affine_loops_take_a_hundredth_of_the_launches_of_lax_scan():
    found = report.bounded(json.loads((FOLDER / "parallel.json").read_text()))
    assert set(found) == set(loops.LOOPS)
    for name, share in found.items():
        # The original of PureJaxRL has 16 steps a trip; by hand it takes 0.024.
        known = {"advantage estimation (PureJaxRL)": 0.03}
        assert 0 < share <= known.get(name, 0.01), (name, share)


def test_sizes_are_those_that_fit():
    assert len(rows.sizes("h100", quick=True)) == len(loops.LOOPS)
    sizes = rows.sizes("h100")
    assert {(size[1], size[2], size[3]) for size in sizes} >= {
        *((T, 8, 64) for T in rows.LENGTHS),
        *((128, B, D) for B in rows.BATCHES for D in rows.FEATURES),
    }
    assert len({row.key for row in rows.rows("h100")}) == len(rows.rows("h100"))
    assert len(rows.rows("cpu")) < len(rows.rows("v5e")) < len(rows.rows("h100"))


@pytest.mark.slow
def test_loop_is_timed_and_written(tmp_path, monkeypatch):
    sizes = [("leaky sum with resets", 32, 2, 3), ("DeltaNet", 32, 2, 8)]
    monkeypatch.setattr(rows, "sizes", lambda *_: sizes)
    path = tmp_path / "parallel-here.json"
    timed.run(path, quick=True, budget=0.1)
    leaky, delta = json.loads(path.read_text())["rows"]
    assert set(leaky["contenders"]) == set(loops.FORMS) - {loops.CHUNKS}
    assert set(delta["contenders"]) == {loops.SCAN, loops.PLANNED, loops.PRODUCTS}
    report.write(tmp_path)
    text = path.with_suffix(".md").read_text()
    lines = [line for line in text.splitlines() if "[" in line and line[0] == "|"]
    assert len(lines) == 4 and "wrong" not in text


def test_row_that_does_not_fit_says_so():
    row = rows.rows("v5e", quick=True)[0].as_json()
    page = report.compiled(
        {
            **{"versions": {}, "commit": "c", "dirty": False, "date": "2026-11-25"},
            "rows": [row | {"error": "RESOURCE_EXHAUSTED: of 15 G"}],
        }
    )
    assert "does not fit into memory" in page
