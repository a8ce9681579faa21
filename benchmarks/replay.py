"""Times that a race has taken, handed to pytest-benchmark as if they were taken now.

The contenders of a row run in turns; pytest-benchmark times one function after the
other. So the race is run once, and each of its times is then one round of a benchmark.
"""

from collections.abc import Callable, Iterable

from benchmarks.race import Race


class Clock:
    """A timer whose readings lie as far apart as the times that it was given."""

    def __init__(self):
        self._now, self._steps = 0.0, iter(())

    def load(self, seconds: Iterable[float]) -> None:
        """Sets the times; each takes two readings."""
        self._steps = (step for time in seconds for step in (0.0, time))

    def __call__(self) -> float:
        self._now += next(self._steps, 0.0)
        return self._now


CLOCK = Clock()


class Row:
    """A row that ran: what is left of its race.

    Attributes:
      record: what the report needs to know.
      seconds: of each round, by contender and mode.
      failed: the verdict on each contender that is wrong.
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
    """Runs each row when its first benchmark asks for it, and keeps the newest.

    Attributes:
      records: of all rows that ran.
    """

    def __init__(self):
        self.records: list[dict] = []
        self._name, self._row = None, None

    def get(self, name: str, run: Callable[[], Row]) -> Row:
        """The row of a name, which runs if it is not the newest."""
        if self._row is None or name != self._name:
            self._name, self._row = name, run()
            self.records.append(self._row.record)
        return self._row
