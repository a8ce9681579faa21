"""Measuring: all programs of one size, in turns, in one process.

A round times each program once; short calls are repeated within a turn. So a
disturbance of the machine affects all programs. Medians over rounds are compared.
There are at least 30 rounds, and more until every median is known to 3 % or the time
is up.
"""

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Iterable
from typing import Any

from benchmarks import gate, intervals, machine
from benchmarks.cases import MODES, Case, problem
from benchmarks.contenders._base import Contender, Runner

SLOT = 0.02  # seconds of repeated calls in the turn of one contender
REST = 0.01  # seconds of pause: OpenMP threads of the contender before stop spinning
MIN_ROUNDS = 30
SETTLED = 0.03  # the widest side of a settled 95 % interval, as a share of the median
LOOKS = 10  # rounds between two checks of the intervals


@dataclasses.dataclass
class Entry:
    """One program in a race: a case, who computes it, its verdict and its times."""

    case: Any
    contender: Contender
    runner: Runner | None = None
    verdict: gate.Verdict | None = None
    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether the contender may be timed: only if it has passed the gate."""
        return self.verdict is not None and self.verdict.passed

    @property
    def settled(self) -> bool:
        """Whether the intervals of all medians are as narrow as `SETTLED`.

        A mode that the race no longer has was never timed.
        """
        estimates = map(intervals.median, filter(None, self.seconds.values()))
        return all(estimate.width <= SETTLED for estimate in estimates)

    def median(self, mode: str) -> float:
        return statistics.median(self.seconds[mode])


def ready(case: Case, contender: Contender) -> tuple[Runner, gate.Verdict]:
    """The runner of a contender, and the verdict of the gate on its answers."""
    runner = contender.setup(problem(case))
    return runner, gate.check(runner, case)


class Race:
    """Sets up and checks programs; `round()` times each once."""

    def __init__(
        self,
        programs: Iterable[tuple[Any, Contender]],
        modes=MODES,
        ready=ready,
        slot: float = SLOT,
    ):
        self.modes, self._ready, self._seconds = tuple(modes), ready, slot
        self.others: list[float] = []
        self.entries = [self._enter(case, contender) for case, contender in programs]
        self.running = [entry for entry in self.entries if entry.runs]
        self._order = random.Random(0)

    def _enter(self, case, contender):
        runner, verdict = self._ready(case, contender)
        entry = Entry(case, contender, runner, verdict)
        if not verdict.passed:
            entry.runner = None  # frees its memory: it will not be timed
            return entry
        for mode in self.modes:
            once = _timed(runner, mode, 1)  # the gate has warmed it up
            entry.calls[mode] = max(1, math.ceil(self._seconds / once))
            entry.seconds[mode] = []
        return entry

    def run(self, budget: float, least: int = MIN_ROUNDS) -> None:
        """Runs rounds until every median is settled or the time is up.

        Args:
          budget: the most seconds for all rounds.
          least: the least number of rounds, however long they take.
        """
        end = time.perf_counter() + budget
        while len(self.others) < least or (
            time.perf_counter() < end and not self.settled
        ):
            for _ in range(min(LOOKS, max(least, 1))):
                self.round()

    @property
    def settled(self) -> bool:
        """Whether all programs are settled."""
        return all(entry.settled for entry in self.running)

    def round(self):
        """Gives each program one turn in each mode, in a new order every time."""
        turns = [(entry, mode) for entry in self.running for mode in self.modes]
        self._order.shuffle(turns)
        others = machine.Others()
        for entry, mode in turns:
            entry.seconds[mode].append(_slot(entry, mode))
        self.others.append(others.cores())

    @property
    def disturbance(self) -> float:
        """The cores that other processes used: the mean over rounds.

        A median would hide what disturbs fewer than half of the rounds.
        """
        return statistics.fmean(self.others) if self.others else 0.0


def _slot(entry, mode):
    time.sleep(REST)
    if entry.calls[mode] > 1:
        _timed(entry.runner, mode, 1)  # brings its data back into the cache
    return _timed(entry.runner, mode, entry.calls[mode])


def _timed(runner, mode, calls):
    call = getattr(runner, mode)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls
