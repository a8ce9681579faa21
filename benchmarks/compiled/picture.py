"""The picture of the report: a panel for each machine and number, a dot for a case."""

from benchmarks.aims import geometric_mean
from benchmarks.compiled import summary
from benchmarks.compiled.suite import OURS, PLAIN
from benchmarks.compiled.targets import TARGETS
from benchmarks.steps import CELLS

# What is drawn of each machine's training steps, and its aim for the mean.
PANELS = {
    "h100": (("launches", "launches in all", 0.35), ("temp_bytes", "temporaries", 0.5)),
    "v5e": (("cycles", "cycles", 0.4), ("temp_bytes", "temporaries", 0.5)),
}


def draw(rows: list[dict], path) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(TARGETS), 2, squeeze=False, figsize=(12, 7))
    for line, machine in zip(axes, TARGETS, strict=True):
        for axis, (what, title, aim) in zip(line, PANELS[machine], strict=True):
            _panel(axis, rows, machine, what, aim)
            axis.set_title(f"{TARGETS[machine].title}, train: {title} / lax.scan's")
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)


def _panel(axis, rows, machine, what, aim):
    cases = list(summary.cases(rows, machine, "train"))
    low, high = aim, 1.0
    for height, cell in enumerate(CELLS):
        chosen = [c for c in cases if next(iter(c.values()))["case"]["cell"] == cell]
        numbers = [summary.ratio(case, what, OURS, PLAIN) for case in chosen]
        numbers = [number for number in numbers if number is not None]
        axis.plot(numbers, [height] * len(numbers), "o", alpha=0.5)
        if numbers:
            axis.plot(geometric_mean(numbers), height, "k|", markersize=16)
            low, high = min(low, *numbers), max(high, *numbers)
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.axvline(aim, color="green", linewidth=0.8, linestyle="--")
    axis.set_xscale("log", base=2)
    axis.set_xlim(low / 1.2, high * 1.2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_yticks(range(len(CELLS)), list(CELLS), fontsize=8)
    axis.set_ylim(len(CELLS) - 0.5, -0.5)
