"""Other people's programs, each one benchmark: as it is, and accelerated.

As with the suite, what matters is in `extra_info`, and only a wrong answer fails.
"""

import gc

import pytest

from benchmarks import measure
from benchmarks.contenders import Absent
from benchmarks.programs import FILES, ORIGINAL, OURS
from benchmarks.programs.measure import enter, record


@pytest.mark.parametrize("name", FILES)
def test_programs(benchmark, name, machine_prepared, request):
    race = enter(name)
    benchmark.group = "programs"
    if isinstance(race, Absent):
        benchmark.extra_info.update(record(name, race))
        benchmark.pedantic(lambda: None)
        return
    rounds = race.rounds(request.config.getoption("--budget"))
    benchmark.pedantic(race.round, rounds=rounds, iterations=1)
    if measure.is_doubtful(race, OURS, ORIGINAL):
        for _ in range(2 * rounds):
            race.round()
    benchmark.extra_info.update(record(name, race))
    failed = [str(entry.verdict) for entry in race.entries if not entry.runs]
    del race
    gc.collect()
    assert not failed, f"wrong answers, so no times: {failed}"
