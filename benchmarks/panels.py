"""Pictures of the reports: panels of ratios, with a dot for each case."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.aims import geometric_mean

# Colours of Okabe and Ito, which colour-blind people can tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


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
    drawn(rows, size, heights).savefig(path, dpi=100, metadata={"Software": None})


def drawn(rows: Sequence[Sequence[Panel]], size, heights=None):
    """The figure of rows of panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    axes = figure.subplots(
        len(rows), len(rows[0]), squeeze=False, height_ratios=heights
    )
    for line, panels in zip(axes, rows, strict=True):
        for axis, panel in zip(line, panels, strict=True):
            _draw(axis, panel)
    figure.tight_layout()
    return figure


def power(number: float) -> str:
    """The label of a power of two: short, so that labels do not overlap.

    Example:
        >>> power(0.015625), power(0.5), power(2.0)
        ('1/64', '0.5', '2')
    """
    return f"1/{1 / number:.0f}" if number < 0.1 else f"{number:g}"


def _draw(axis, panel):
    low, high = panel.low, panel.high
    for height, (_, numbers) in enumerate(panel.lines):
        axis.plot(numbers, [height] * len(numbers), "o", color=BLUE, alpha=0.5)
        if numbers:
            axis.plot(geometric_mean(numbers), height, "k|", markersize=16)
            low, high = min(low, *numbers), max(high, *numbers)
    axis.axvline(1, color="grey", linewidth=0.8)
    if panel.aim is not None:
        axis.axvline(panel.aim, color=ORANGE, linewidth=0.8, linestyle="--")
    axis.set_xscale("log", base=2)
    axis.set_xlim(low / 1.2, high * 1.2)
    axis.xaxis.set_major_formatter(lambda x, _: power(x))
    labels = [label for label, _ in panel.lines]
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set_title(panel.title)
