"""Every row of the suite: `pytest benchmarks` runs them.

A row is a group of pytest-benchmark, and each of its contenders is a benchmark. All
programs of one size are timed in turns (see `replay`), each once, whatever the number
of rows that show it. The records for the report are in the same JSON file. Only a wrong
answer fails a benchmark. Time never does.
"""

import pytest

from benchmarks import measure, suite
from benchmarks.cases import MODES
from benchmarks.conftest import report_one
from benchmarks.replay import CLOCK, Row

ROWS = {row.name: row for row in suite.rows(*suite.SECTIONS)}
# The first row of each section, which `-m first` selects.
FIRST = {suite.rows(section)[0].name for section in suite.SECTIONS}


def _params():
    for name, row in ROWS.items():
        marks = [pytest.mark.quick] if row.section == "quick" else []
        marks += [pytest.mark.first] if name in FIRST else []
        for contender in row.contenders:
            for mode in MODES:
                id_ = f"{name}-{contender}-{mode}"
                yield pytest.param(name, contender, mode, id=id_, marks=marks)


@pytest.fixture(scope="session")
def selected(request) -> list[suite.Row]:
    """The rows that this run of pytest has selected."""
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    names = dict.fromkeys(call.params.get("name") for call in calls if call)
    return [ROWS[name] for name in names if name in ROWS]


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize(("name", "contender", "mode"), list(_params()))
def test_speed(benchmark, name, contender, mode, limits, rows, budget, selected):
    def run():
        alike = [row for row in selected if row.size == ROWS[name].size]
        race, entries = measure.enter(alike, MODES)
        seconds, least = budget
        race.run(seconds * len(alike), least)
        for row, found in zip(alike, entries, strict=True):
            yield row.name, Row(found, measure.record(row, race, found, limits))

    report_one(benchmark, rows.get(name, run), name, contender, mode)
