"""Times that a race has measured, given to pytest-benchmark as if it measured them.

The contenders of a row run in turns, but pytest-benchmark times one function after the
other. So the race runs once, and each of its times becomes one round of a benchmark.
"""

from collections.abc import Callable, Iterable

from benchmarks.race import Race


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
    """A row that ran, without the programs of its race.

    Attributes:
      record: everything that the report needs to know.
      seconds: the times of all rounds, by contender and mode.
      failed: the verdict on each contender whose answers are wrong, by name.
    """

    def __init__(self, race: Race | None, record: dict):
        entries = race.entries if race else []
        self.record = record
        self.seconds = {
            (entry.contender.name, mode): times
            for entry in entries
            for mode, times in entry.seconds.items()
        }
        self.failed = {
            entry.contender.name: str(entry.verdict)
            for entry in entries
            if entry.verdict is not None and not entry.verdict.passed
        }


class Rows:
    """Runs each row when its first benchmark asks for it, and keeps the newest row.

    Attributes:
      records: the records of all rows that ran.
    """

    def __init__(self):
        self.records: list[dict] = []
        self._name, self._row = None, None

    def get(self, name: str, run: Callable[[], Row]) -> Row:
        """The row of that name; it is run by `run()` unless it is the newest row."""
        if self._row is None or name != self._name:
            self._name, self._row = name, run()
            self.records.append(self._row.record)
        return self._row
