"""Times that a race has measured, given to pytest-benchmark as if it measured them.

The contenders of a row run in turns, but pytest-benchmark times one function after the
other. So the race runs once, and each of its times becomes one round of a benchmark.
"""

import gc
from collections.abc import Callable, Iterable, Mapping

from benchmarks.race import Entry


class Clock:
    """A timer whose pairs of readings differ by the times that it was given."""

    def __init__(self):
        self._now, self._steps = 0.0, iter(())

    def load(self, seconds: Iterable[float]) -> None:
        """Sets the times; each is the difference of two readings."""
        self._steps = (step for time in seconds for step in (0.0, time))

    def __call__(self) -> float:
        self._now += next(self._steps, 0.0)
        return self._now


CLOCK = Clock()


class Row:
    """A row that ran, without its programs.

    Attributes:
      record: everything that the report needs to know.
      seconds: the times of all rounds, by contender and mode.
      failed: the verdict on each contender whose answers are wrong, by name.
    """

    def __init__(self, entries: Mapping[str, Entry | str], record: dict):
        ran = {name: e for name, e in entries.items() if isinstance(e, Entry)}
        self.record = record
        self.seconds = {
            (name, mode): times
            for name, entry in ran.items()
            for mode, times in entry.seconds.items()
        }
        self.failed = {
            name: str(entry.verdict) for name, entry in ran.items() if not entry.runs
        }


class Rows:
    """The rows that ran, each with those that were measured together with it.

    Attributes:
      records: the records of all rows that ran.
    """

    def __init__(self):
        self.records: list[dict] = []
        self._rows: dict[str, Row] = {}

    def get(self, name: str, run: Callable[[], Iterable[tuple[str, Row]]]) -> Row:
        """The row of that name; if it did not run yet, `run()` gives it and others."""
        if name not in self._rows:
            gc.collect()  # frees what the race before has left
            found = dict(run())
            self._rows |= found
            self.records += [row.record for row in found.values()]
        return self._rows[name]
