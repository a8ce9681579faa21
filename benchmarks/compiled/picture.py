"""The picture of the report: a panel for each machine and cost, a dot for each case."""

from benchmarks import panels
from benchmarks.compiled import summary
from benchmarks.compiled.suite import CELLS, OURS, PLAIN
from benchmarks.compiled.targets import TARGETS

# The costs of training steps that are drawn for each machine, and the aims of means.
PANELS = {
    "h100": (("launches", "launches in all", 0.35), ("temp_bytes", "temporaries", 0.5)),
    "v5e": (("cycles", "cycles", 0.4), ("temp_bytes", "temporaries", 0.5)),
}
SIZE = (12, 7)  # inches


def draw(rows: list[dict], path) -> None:
    """Writes the picture."""
    panels.draw(path, panels_of(rows), SIZE)


def panels_of(rows: list[dict]) -> list[list[panels.Panel]]:
    """The panels: a row of them for each machine."""
    return [
        [_panel(rows, machine, *one) for one in PANELS[machine]] for machine in TARGETS
    ]


def _panel(rows, machine, what, title, aim):
    cases = list(summary.cases(rows, machine, "train"))
    lines = []
    for cell in CELLS:
        chosen = [c for c in cases if next(iter(c.values()))["case"]["cell"] == cell]
        numbers = [summary.ratio(case, what, OURS, PLAIN) for case in chosen]
        lines.append((cell, [number for number in numbers if number is not None]))
    title = f"{TARGETS[machine].title}, train: {title} / lax.scan's"
    return panels.Panel(title, lines, aim, 1.0, aim)
