"""Times calls in turns, as `benchmarks.race` does, and shows their intervals."""

import types
from collections.abc import Callable
from typing import Any

from benchmarks import intervals, measure
from benchmarks.contenders._base import Contender
from benchmarks.gate import Verdict
from benchmarks.race import MIN_ROUNDS, Race

# Each section checks its answers itself, before it asks for times.
_CHECKED = Verdict(True, 0.0, "answers")
# The most seconds of timing of a row.
SECONDS = 10.0


def turns(calls: dict[str, Callable[[], Any]], quick: bool = False) -> dict:
    """The record of one row: the times of every call, which take turns in rounds.

    Args:
      calls: what is timed, by name; a call waits until its result is computed.
      quick: two rounds alone, to see whether everything runs.
    """
    contenders = [Contender(name, _any, _runner(call)) for name, call in calls.items()]
    race = Race([(None, one) for one in contenders], ("train",), ready=_ready)
    race.run(0.0 if quick else SECONDS, 2 if quick else MIN_ROUNDS)
    return {
        "times": {e.contender.name: measure.timings(e, "train") for e in race.entries},
        "disturbance": race.disturbance,
        "settled": race.settled,
    }


def milliseconds(row: dict, name: str) -> str:
    """The median with its 95 % interval."""
    times = row["times"][name]
    found = (1e3 * times[bound] for bound in ("median", "low", "high"))
    return "{:.3g} [{:.3g}, {:.3g}]".format(*found)


def ratio(row: dict, over: str, under: str) -> str:
    """The ratio of two medians with its 95 % interval."""
    pair = (row["times"][name]["seconds"] for name in (over, under))
    return "{:.2f} [{:.2f}, {:.2f}]".format(*intervals.ratio(*pair))


def _any(case):
    del case


def _runner(call):
    return lambda case: types.SimpleNamespace(train=call)


def _ready(case, contender):
    runner = contender.setup(case)
    for _ in range(2):  # compiles and warms up
        runner.train()
    return runner, _CHECKED
