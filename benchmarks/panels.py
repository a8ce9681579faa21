"""Pictures of the reports: panels of ratios, with a dot for each case."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.aims import geometric_mean


class Panel(NamedTuple):
    """One panel.

    Attributes:
      title: the text above the panel.
      lines: a label and its ratios, for each line of dots.
      low: the smallest ratio that the axis always shows.
      high: the largest ratio that the axis always shows.
      aim: the ratio of an aim, which is drawn as a line, or None.
    """

    title: str
    lines: Sequence[tuple[str, Sequence[float]]]
    low: float
    high: float
    aim: float | None = None


def draw(path, rows: Sequence[Sequence[Panel]], size, heights=None) -> None:
    """Writes a picture of rows of panels; `heights` are relative heights of rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(rows), len(rows[0]), squeeze=False, figsize=size, height_ratios=heights
    )
    for line, panels in zip(axes, rows, strict=True):
        for axis, panel in zip(line, panels, strict=True):
            _draw(axis, panel)
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)


def _draw(axis, panel):
    low, high = panel.low, panel.high
    for height, (_, numbers) in enumerate(panel.lines):
        axis.plot(numbers, [height] * len(numbers), "o", alpha=0.5)
        if numbers:
            axis.plot(geometric_mean(numbers), height, "k|", markersize=16)
            low, high = min(low, *numbers), max(high, *numbers)
    axis.axvline(1, color="grey", linewidth=0.8)
    if panel.aim is not None:
        axis.axvline(panel.aim, color="green", linewidth=0.8, linestyle="--")
    axis.set_xscale("log", base=2)
    axis.set_xlim(low / 1.2, high * 1.2)
    axis.xaxis.set_major_formatter("{x:g}")
    labels = [label for label, _ in panel.lines]
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set_title(panel.title)
