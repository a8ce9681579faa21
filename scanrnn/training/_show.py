"""What a run prints: a progress bar, and a line for every evaluation."""

import collections
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from scanrnn.training._records import Writer


class Units:
    """A writer that converts rows to the units of a run for other writers.

    Args:
        writers: The writers of the converted rows.
        factor: The loss is multiplied by this number.
        seconds: Seconds that earlier sessions took.

    Example:
        >>> Units([], factor=2.0, seconds=5.0).converted({"step": 1, "loss": 3.0})
        {'step': 1, 'loss': 6.0}
    """

    def __init__(self, writers: Sequence[Writer], factor: float, seconds: float):
        """Starts the clock."""
        self._writers, self._factor = writers, factor
        self._begin = time.perf_counter() - seconds

    def converted(self, row: dict[str, Any]) -> dict[str, Any]:
        """Converts a row.

        Args:
            row: A row of `fit`.

        Returns:
            The row in the units of the run. Its "seconds" count earlier sessions too.
        """
        changes = {}
        if "loss" in row:
            changes["loss"] = row["loss"] * self._factor
        if "seconds" in row:
            changes["seconds"] = round(time.perf_counter() - self._begin, 4)
        return row | changes

    def write(self, row: dict[str, Any]) -> None:
        """Converts a row, and gives it to all writers."""
        row = self.converted(row)
        for writer in self._writers:
            writer.write(row)

    def flush(self) -> None:
        """Flushes all writers."""
        for writer in self._writers:
            writer.flush()


class Bar:
    """A writer that prints a progress bar, and a line for every evaluation.

    Args:
        console: Where to print. The bar is shown only on a terminal.
        steps: Steps of the whole run.
        first: Steps that the run has already taken.
        tokens: Tokens per step.
        unit: The unit of the loss.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> out = io.StringIO()
        >>> with Bar(Console(file=out), 2, 0, 10, "bits") as bar:
        ...     bar.write({"step": 1, "loss": 3.0, "skipped": False, "seconds": 0.5})
        ...     bar.write({"step": 1, "held_out": 3.5})
        >>> out.getvalue().strip()
        'step     1: loss 3.000, held out 3.500 bits'
    """

    def __init__(
        self, console: Console, steps: int, first: int, tokens: int, unit: str
    ):
        """Makes the bar, but does not show it yet."""
        self._tokens, self._unit = tokens, unit
        self._recent: collections.deque[float] = collections.deque(maxlen=21)
        self._last: dict[str, Any] = {}
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(
            "", total=steps, completed=first, status="compiling"
        )

    def __enter__(self) -> "Bar":
        """Shows the bar."""
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Removes the bar."""
        self._progress.stop()

    def write(self, row: dict[str, Any]) -> None:
        """Moves the bar; prints a line for an evaluation or a skipped step."""
        if "loss" in row:
            self._last |= row
            self._recent.append(row["seconds"])
            if row["skipped"]:
                self._progress.console.print(
                    f"step {row['step']:>5}: skipped, its {row['fault']} is not finite"
                )
        else:
            self._last |= row
            self._progress.console.print(f"step {row['step']:>5}: {self._status()}")
        self._progress.update(
            self._task, completed=row["step"], status=self._status() + self._speed()
        )

    def flush(self) -> None:
        """Does nothing: rows are printed at once."""

    def go_on_until(self, steps: int) -> None:
        """Sets the number of steps of the whole run.

        Args:
            steps: The number of steps.
        """
        self._progress.update(self._task, total=steps)

    def _status(self):
        status = f"loss {self._last.get('loss', float('nan')):.3f}"
        if "held_out" in self._last:
            status += f", held out {self._last['held_out']:.3f} {self._unit}"
        if "perplexity" in self._last:
            status += f", perplexity {self._last['perplexity']:.1f}"
        return status

    def _speed(self):
        if len(self._recent) < 2:
            return ""
        times = list(self._recent)
        pace = statistics.median(b - a for a, b in zip(times, times[1:], strict=False))
        return f", {self._tokens / max(pace, 1e-9):,.0f} tokens/s"


def print_text(console: Console, text: str) -> None:
    """Prints a text as it is: `Console.out` would expand tabs, and drop form feeds."""
    if not console.quiet:
        console.file.write(text)
        console.file.flush()
