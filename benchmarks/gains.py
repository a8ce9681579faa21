"""The table and the chart of the README, made from the committed results alone.

`python -m benchmarks.gains` writes both again after the results have changed.
"""

import itertools
import json
import pathlib
import re
from typing import NamedTuple

from matplotlib.figure import Figure

from benchmarks import aims, beside, claims, newest, panels, report
from benchmarks.compiled import summary
from benchmarks.measure import is_known, ratio, same_program

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# One report for each machine that programs were timed on.
TIMED = (
    RESULTS / "amd-epyc-zen-4-avx512-2-cores.json",
    RESULTS / "amd-epyc-avx512-2-cores.json",
    RESULTS / "amd-epyc-2-cores.json",
    RESULTS / "intel-xeon-amx-bf16-2-cores.json",
)
# Of the JAX that needs a newer Python, in which there is no torch.
NEWEST = RESULTS / "newest-amd-epyc-zen-4-avx512-2-cores.json"
COUNTED = RESULTS / "compiled.json"
PICTURE = RESULTS / "gains.png"
# Pages that hold the table, between these two lines.
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
MARKS = ("<!-- written by python -m benchmarks.gains -->", "<!-- end -->")
# The page that holds the table of `beside`, between such lines.
BESIDE = ROOT / "docs" / "benchmarks.md"
PAIR = ("scanrnn", "lax_scan")
MEMORY = "temporary memory"


class Gain(NamedTuple):
    """One line: a training step's cost divided by that of the same step in `lax.scan`.

    Attributes:
      what: the cost that is compared, such as "time".
      where: the machine, and whether the cost was timed or compiled.
      ratios: one for each cell and size.
      mean: their geometric mean with its interval, in words; empty for counts.
    """

    what: str
    where: str
    ratios: list[float]
    mean: str = ""


def gains() -> list[Gain]:
    """All lines, from the committed results."""
    newest, *others = TIMED
    # The memory of a program is almost the same on all CPUs.
    found = [_time(newest), _memory(newest), *map(_time, others)]
    rows = json.loads(COUNTED.read_text())["rows"]
    for machine, what, word in (
        ("h100", "launches", "kernel launches"),
        ("h100", "temp_bytes", MEMORY),
        ("v5e", "cycles", "cycles, the compiler's estimate"),
        ("v5e", "temp_bytes", MEMORY),
    ):
        where = {"h100": "H100", "v5e": "TPU v5e"}[machine] + ": compiled, not timed"
        found.append(Gain(word, where, summary.ratios(rows, machine, what)))
    return [gain for gain in found if gain.ratios]


def _time(path) -> Gain:
    where, rows = planned(path)
    known = [r for r in rows if is_known(r, "train", *PAIR)]
    ratios = [ratio(r, "train", *PAIR) for r in known]
    mean = beside.mean(known, "train", *PAIR)
    return Gain("time", f"{where}: timed", ratios, mean)


def _memory(path) -> Gain:
    where, rows = planned(path)
    taken = aims.ratios(rows, None, "train", *PAIR, "temp_bytes")
    return Gain(MEMORY, f"{where}: compiled", taken)


def planned(path):
    """The machine of a report, and its rows that `lax.scan` does not run unchanged."""
    results, records = report.load(path)
    rows = [r for r in records if not same_program(r, "train", *PAIR)]
    return beside.machine(results), rows


def table(found: list[Gain]) -> str:
    """The table, in Markdown."""
    lines = [
        "| training step, divided by `lax.scan`'s | on | sizes"
        f" | {beside.MEAN} | best | worst |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for gain in found:
        mean = gain.mean or f"{aims.geometric_mean(gain.ratios):.2f}"
        ends = (f"{end(gain.ratios):.2f}" for end in (min, max))
        cells = " | ".join([mean, *ends])
        lines.append(f"| {gain.what} | {gain.where} | {len(gain.ratios)} | {cells} |")
    told = beside.layers(TIMED, ("torch", "flax_nnx"))
    return "\n".join([*lines, "", told])


def text_beside() -> str:
    """What `docs/benchmarks.md` says of all machines that were timed."""
    parts = [beside.text(TIMED), claims.text(TIMED)]
    if NEWEST.exists():
        parts += ["Cells with a newer JAX, without torch:", newest.text(NEWEST)]
    return "\n\n".join(parts)


def put(text: str, page: str) -> str:
    """The page with this text between the marks.

    Raises:
      ValueError: if the page has no marks.
    """
    start, end = MARKS
    pattern = re.compile(f"{re.escape(start)}\n.*?{re.escape(end)}", re.S)
    if not pattern.search(page):
        raise ValueError(f"page: found no lines {start!r} and {end!r}")
    return pattern.sub(lambda _: f"{start}\n{text}\n{end}", page)


def draw(found: list[Gain], path: pathlib.Path) -> None:
    """The chart: a dot for each cell and size, a bar for the mean."""
    figure = Figure(figsize=(9, 0.6 + 0.5 * len(found)), layout="constrained")
    axes = figure.subplots()
    labels = [f"{gain.what}\n{gain.where}" for gain in found]
    for place, gain in zip(itertools.count(len(found), -1), found):
        timed = gain.where.endswith(": timed")
        style = {"color": panels.BLUE if timed else panels.ORANGE, "alpha": 0.35}
        marker = "o" if timed else "s"
        axes.plot(gain.ratios, [place] * len(gain.ratios), marker, ms=5, **style)
        mean = aims.geometric_mean(gain.ratios)
        axes.plot([mean, mean], [place - 0.3, place + 0.3], color="black", lw=2)
    axes.axvline(1.0, color="gray", lw=1)
    axes.set_xscale("log", base=2)
    ticks = [1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2]
    axes.set_xticks(ticks, list(map(panels.power, ticks)))
    axes.set_xlim(1 / 256, 3.5)
    axes.set_yticks(range(len(found), 0, -1), labels, fontsize=9)
    axes.set_title("cost of a training step / lax.scan's; bar: mean; less is better")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Writes the chart, and the table into every page."""
    found = gains()
    draw(found, PICTURE)
    for page in PAGES:
        page.write_text(put(table(found), page.read_text()))
    BESIDE.write_text(put(text_beside(), BESIDE.read_text()))


if __name__ == "__main__":
    main()
