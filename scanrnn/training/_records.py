"""Records of a run: a row for every step and evaluation, and a plot of the curves."""

import contextlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scanrnn._files import replacing
from scanrnn.training._files import writing


class Writer(Protocol):
    """Anything that rows of a run can be written to: `Log`, `TensorBoard`, or yours."""

    def write(self, row: dict[str, Any]) -> None:
        """Writes a row: a dict with "step" and other names and numbers."""
        ...

    def flush(self) -> None:
        """Returns when all rows are where a crash cannot delete them."""
        ...


class Log:
    """A file with a JSON object per line, one for every step and evaluation.

    Args:
        path: The file. It is created if it is missing.
        last: The step to continue after. Rows of later steps, which an older session
            wrote after its last checkpoint, are deleted. None keeps all rows.

    Example:
        >>> import tempfile
        >>> from scanrnn.training import Log
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Log(f"{folder}/log.jsonl")
        ...     log.write({"step": 1, "loss": 2.5})
        ...     log.write({"step": 2, "loss": float("nan")})
        ...     log.flush()
        ...     Log(f"{folder}/log.jsonl", last=1).rows()
        [{'step': 1, 'loss': 2.5}]
    """

    def __init__(self, path: str | Path, last: int | None = None):
        """Keeps the rows up to `last`, and deletes the others."""
        self.path = Path(path)
        rows = [r for r in self.rows() if last is None or r["step"] <= last]
        with writing(self.path.parent), replacing(self.path) as partial:
            partial.write_text("".join(map(_line, rows)), encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Appends a row.

        Args:
            row: A dict with "step" and other names and numbers. Numbers that are not
                finite become null.

        Raises:
            ValueError: If the file cannot be written.
        """
        # Opening the file again takes microseconds. So nobody has to close it, and
        # other programs see every row.
        with writing(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def flush(self) -> None:
        """Returns when all rows are on the disk."""
        with writing(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """Reads the rows of the file.

        Returns:
            The rows, without a last line that is not complete: a process that is
            killed may leave half a line.

        Raises:
            ValueError: If the file is not such a log.
        """
        if not self.path.is_file():
            return []
        with writing(self.path.parent):
            # A file system may leave zeros at the end after a power failure.
            content = self.path.read_bytes().rstrip(b"\0")
        *lines, last = content.split(b"\n")
        found = [self._row(line) for line in lines if line.strip()]
        if last.startswith(b"{"):
            with contextlib.suppress(ValueError):
                found.append(self._row(last))
        elif last:
            found.append(self._row(last))
        return found

    def _row(self, line: bytes) -> dict[str, Any]:
        """The row of a line."""
        try:
            row = json.loads(line)
            known = isinstance(row, dict) and isinstance(row.get("step"), int)
        except ValueError:
            known = False
        if not known:
            raise ValueError(
                f"path: {str(self.path)!r} is no log of a run: its line {line[:40]!r} "
                "has no step; choose another folder for the run"
            )
        return row


def _line(row):
    return json.dumps({name: _plain(value) for name, value in row.items()}) + "\n"


def _plain(value):
    """A value as JSON can hold it: no arrays, and null for what is not finite."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if value is None or isinstance(value, str):
        return value
    if np.ndim(value):
        return _plain(np.asarray(value).tolist())
    number = np.asarray(value).item()
    return number if math.isfinite(number) else None


class TensorBoard:
    """A writer of TensorBoard scalars; needs `pip install tensorboardX`.

    Args:
        folder: The folder that TensorBoard reads.
        last: The step after which a run goes on. What an earlier session wrote of later
            steps is hidden.

    Raises:
        ImportError: If tensorboardX is not installed.

    Example:
        >>> from scanrnn.training import TensorBoard
        >>> TensorBoard.__name__
        'TensorBoard'
    """

    def __init__(self, folder: str | Path, last: int = 0):
        """Opens the folder."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ImportError(
                "tensorboard needs tensorboardX: pip install tensorboardX"
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=last + 1)

    def write(self, row: dict[str, Any]) -> None:
        """Adds a scalar for every number of a row.

        Args:
            row: A dict with "step" and other names and numbers.
        """
        for name, value in row.items():
            if name != "step" and np.asarray(value).dtype.kind in "biuf":
                self._writer.add_scalar(name, np.asarray(value).item(), row["step"])

    def flush(self) -> None:
        """Writes the scalars that are not written yet."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the files."""
        self._writer.close()


def draw_curves(
    path: str | Path, rows: Sequence[dict[str, Any]], unit: str = "loss"
) -> bool:
    """Draws loss, gradient norm and skipped steps of a run.

    Args:
        path: The PNG file to write.
        rows: The rows, as `Log.rows` returns them.
        unit: The unit of the loss, as the label of its axis.

    Returns:
        True if the curves were drawn; False if matplotlib is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> from scanrnn.training import draw_curves
        >>> rows = [{"step": 1, "loss": 6.5, "grad_norm": 1.0, "skipped": False}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "loss.png"
        ...     draw_curves(path, rows) == path.exists()
        True
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[2, 1])
    above.plot(*_column(rows, "loss"), "0.7", linewidth=0.8, label="training")
    above.plot(*_column(rows, "held_out"), "o-", color="tab:blue", label="held out")
    above.set(ylabel=unit)
    losses = [row.get(name) or 0 for row in rows for name in ("loss", "held_out")]
    # A log-likelihood of densities can have any sign.
    if any(losses) and min(losses) >= 0:
        above.set(ylim=(0, None))
    below.plot(*_column(rows, "grad_norm"), "0.6", linewidth=0.8)
    # A text of one character has neither a loss nor a gradient.
    if any(row.get("grad_norm") for row in rows):
        below.set(yscale="log")
    below.set(xlabel="step", ylabel="gradient norm before clipping")
    skipped = [row["step"] for row in rows if row.get("skipped")]
    for axes in (above, below):
        axes.grid(alpha=0.3)
        for step in skipped:
            axes.axvline(step, color="tab:red", linewidth=0.8)
    if skipped:
        above.plot([], [], color="tab:red", label="skipped")
    above.legend()
    with replacing(Path(path)) as partial:
        figure.savefig(partial, dpi=120, format="png")
    return True


def _column(rows, name):
    found = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return tuple(zip(*found, strict=True)) or ((), ())
