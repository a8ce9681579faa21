"""Other people's programs, each one a row: as it is, and accelerated.

Only a wrong answer fails a benchmark. Time never does.
"""

import pytest

from benchmarks.cases import MODES
from benchmarks.conftest import report_one
from benchmarks.contenders import Absent
from benchmarks.programs import FILES, LAYER, ORIGINAL, OURS, WITH_LAYER
from benchmarks.programs.measure import enter, record
from benchmarks.replay import CLOCK, Row


def _params():
    for name in FILES:
        for contender in (ORIGINAL, OURS, *([LAYER] if name in WITH_LAYER else [])):
            for mode in MODES:
                id_ = f"{name}-{contender}-{mode}"
                yield pytest.param(name, contender, mode, id=id_)


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize(("name", "contender", "mode"), list(_params()))
def test_programs(benchmark, name, contender, mode, machine_prepared, rows, budget):
    def run():
        race = enter(name)
        entries = {}
        if not isinstance(race, Absent):
            race.run(*budget)
            entries = {entry.contender.name: entry for entry in race.entries}
        yield name, Row(entries, record(name, race))

    report_one(benchmark, rows.get(name, run), name, contender, mode)
