"""Every row of the suite, each one benchmark: `pytest benchmarks` runs them.

pytest-benchmark times whole rounds; what matters is in `extra_info`: the medians of
each contender, whether it passed the gate, and its share of the machine's limits.
Only a failed gate fails a benchmark. Time never does.
"""

import gc

import pytest

from benchmarks import measure, suite
from benchmarks.cases import MODES

ROWS = {row.name: row for row in suite.rows(*suite.SECTIONS)}


def _params():
    for name, row in ROWS.items():
        marks = pytest.mark.quick if row.section == "quick" else ()
        yield pytest.param(name, id=name, marks=marks)


@pytest.mark.parametrize("name", list(_params()))
def test_speed(benchmark, name, limits, request):
    row = ROWS[name]
    budget = request.config.getoption("--budget")
    race, absent = measure.enter(row, MODES)
    benchmark.group = row.section
    rounds = race.rounds(budget)
    benchmark.pedantic(race.round, rounds=rounds, iterations=1)
    if measure.is_doubtful(race):
        for _ in range(2 * rounds):
            race.round()
    benchmark.extra_info.update(measure.record(row, race, absent, limits))
    failed = {
        entry.contender.name: str(entry.verdict)
        for entry in race.entries
        if entry.verdict is not None and not entry.verdict.passed
    }
    del race
    gc.collect()
    assert not failed, f"wrong answers, so no times: {failed}"
