"""Every row of the suite: `pytest benchmarks` runs them.

A row is a group of pytest-benchmark, and each of its contenders is a benchmark. The
contenders of a group are timed in turns (see `replay`). The records for the report are
in the same JSON file. Only a wrong answer fails a benchmark. Time never does.
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


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize(("name", "contender", "mode"), list(_params()))
def test_speed(benchmark, name, contender, mode, limits, rows, budget):
    def run():
        race, absent = measure.enter(ROWS[name], MODES)
        race.run(*budget)
        return Row(race, measure.record(ROWS[name], race, absent, limits))

    report_one(benchmark, rows.get(name, run), name, contender, mode)
