"""The section of the report on other people's programs."""

from benchmarks.aims import Records, geometric_mean
from benchmarks.cases import MODES
from benchmarks.measure import counts, mark, ratio, ratio_interval, same_program
from benchmarks.panels import Panel
from benchmarks.programs import LAYER, ORIGINAL, OURS
from benchmarks.tables import table

ABOUT = (
    "Programs as other people write them, and every cell of ours under `lax.scan`, run"
    " as they are and through"
    " `scanrnn.accelerate`, one of them also written with our layer: ours, and in"
    " brackets as a multiple of the original's, of times with its 95 % interval."
    " Outputs, loss and every gradient are those of the original, or there are no"
    " numbers. Temporaries are without arguments and results. A forward pass may take"
    " as much of them as the fast memory, and the matrices outside the loop twice: that"
    " does not grow with the sequence."
)
# The columns: the key in the record, its name, and its unit.
COLUMNS = (
    ("median", "time ms", 1e-3),
    ("temp_bytes", "temporaries MB", 1e6),
    ("compile_seconds", "compile s", 1.0),
)


def section(records: Records) -> list[str]:
    """The section in Markdown; empty if no program was measured."""
    chosen = [r for r in records if r["section"] == "programs"]
    if not chosen:
        return []
    tables = [_table(chosen, mode) for mode in MODES]
    return ["## Programs", ABOUT, *tables, _notes(chosen)]


def panels(records: Records) -> list[list[Panel]]:
    """A row of panels, one for each mode; empty if no program was measured."""
    chosen = [r for r in records if r["section"] == "programs"]
    return [[_panel(chosen, mode) for mode in MODES]] if chosen else []


def _panel(records, mode):
    lines = []
    for what, title, _ in COLUMNS:
        numbers = [
            ratio(r, mode, OURS, ORIGINAL, what) for r in _counted(records, what)
        ]
        lines.append((title.rsplit(" ", 1)[0], [n for n in numbers if n is not None]))
    return Panel(f"programs, {mode}: ours / {ORIGINAL}", lines, 0.5, 2.0)


def _table(records, mode):
    heads = ["program", "sizes", *(title for _, title, _ in COLUMNS)]
    rows = []
    for record in records:
        name, sizes = record["case"]["program"], record["case"].get("sizes", "")
        if same_program(record, mode, OURS, ORIGINAL):
            name += " (left as it is)"
        name += mark(record)
        rows.append([name, sizes, *_cells(record, mode, OURS)])
        if LAYER in record["contenders"]:
            rows.append([f"{name}, {LAYER}", sizes, *_cells(record, mode, LAYER)])
    means = [_mean(records, mode, what) for what, _, _ in COLUMNS]
    rows.append(["**geometric mean**", "", *means])
    return f"**{mode}**\n\n{table(heads, rows)}"


def _cells(record, mode, who):
    return [_cell(record, mode, who, what, unit) for what, _, unit in COLUMNS]


def _cell(record, mode, who, what, unit):
    ours = record["contenders"][who]
    if "absent" in ours:
        return "-"
    if not ours["gate"]["passed"]:
        return "wrong"
    factor = ratio(record, mode, who, ORIGINAL, what)
    shown = f"{ours[mode][what] / unit:.3g}"
    if factor is None:
        return shown
    estimate = ratio_interval(record, mode, who, ORIGINAL)
    if what != "median" or estimate is None:
        return f"{shown} ({factor:.2f})"
    return f"{shown} ({factor:.2f} [{estimate.low:.2f}, {estimate.high:.2f}])"


def _mean(records, mode, what):
    numbers = [ratio(r, mode, OURS, ORIGINAL, what) for r in _counted(records, what)]
    mean = geometric_mean(n for n in numbers if n is not None)
    return "-" if mean is None else f"**{mean:.2f}**"


def _counted(records, what):
    """The rows of a mean: for times those that count, for all else every row."""
    return [r for r in records if what != "median" or counts(r)]


def _notes(records):
    """Which programs are missing, and why."""
    return "\n".join(
        f"- {record['case']['program']}: {record['contenders'][OURS]['absent']}"
        for record in records
        if "absent" in record["contenders"][OURS]
    )
