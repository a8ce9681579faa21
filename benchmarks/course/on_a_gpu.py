"""What compiled programs say of the answer "2 to 5 times the vendor's" on a GPU.

Nothing is measured here: the counts are those of `benchmarks/results/compiled.json`.
"""

import json
import pathlib

from benchmarks import steps
from benchmarks.aims import geometric_mean
from benchmarks.compiled import summary
from benchmarks.tables import table

TITLE = "The forum's 2 to 5 times, on a GPU"
ABOUT = """\
Who asked for layer norm, multiplicative integration or residuals was told to expect 2
to 5 times cuDNN's time. Programs compiled for an H100 ({commit}, {date}) give counts,
not times, and cuDNN is not among them; so the yardstick is our own planned LSTM.
Kernels, library calls and copies of a whole training step, as a multiple of that
LSTM's: mean over {sizes} sizes [smallest, largest]."""
SAYS = """\
In `lax.scan` the plain LSTM starts {plain:.1f} times as much as the planned one, and
the variants {low:.1f} to {high:.1f} times. Planned, the variants start {ours_low:.1f}
to {ours_high:.1f} times as much as a planned LSTM. Where the time is that of starting
kernels, this is what a variant costs; the counts do not say what cuDNN's LSTM costs."""
RESULTS = pathlib.Path(__file__).parents[1] / "results" / "compiled.json"
PAIR = ("scanrnn", "lax_scan")
OURS, THEIRS = PAIR


def measure(quick: bool = False) -> dict:
    """The ratios of every cell and size, by cell and contender."""
    del quick
    results = json.loads(RESULTS.read_text())
    programs = [
        {name: record["launches"] for name, record in by_name.items()}
        | {"size": _size(by_name[OURS]["case"]), "cell": by_name[OURS]["case"]["cell"]}
        for by_name in summary.cases(results["rows"], "h100", "train")
        if set(PAIR) <= set(by_name)
    ]
    plain = {p["size"]: p[OURS] for p in programs if p["cell"] == "lstm"}
    ratios = {
        cell: {
            name: [
                p[name] / plain[p["size"]]
                for p in programs
                if p["cell"] == cell and p["size"] in plain
            ]
            for name in PAIR
        }
        for cell in ("lstm", *steps.CUSTOM)
    }
    return {"commit": results["commit"], "date": results["date"], "ratios": ratios}


def _size(case):
    return str({name: value for name, value in case.items() if name != "cell"})


def report(found: dict) -> list[str]:
    """The part of the page, in Markdown."""
    ratios = found["ratios"]
    lines = [
        [cell, *(_shown(by_name[name]) for name in PAIR)]
        for cell, by_name in ratios.items()
    ]
    means = {
        name: [geometric_mean(ratios[cell][name]) for cell in steps.CUSTOM]
        for name in PAIR
    }
    says = SAYS.format(
        plain=geometric_mean(ratios["lstm"][THEIRS]),
        low=min(means[THEIRS]),
        high=max(means[THEIRS]),
        ours_low=min(means[OURS]),
        ours_high=max(means[OURS]),
    )
    about = ABOUT.format(
        commit=f"commit {found['commit']}",
        date=found["date"],
        sizes=len(ratios["lstm"][OURS]),
    )
    return [about, table(("cell", *PAIR), lines), says]


def _shown(numbers):
    mean = geometric_mean(numbers)
    return f"{mean:.2f} [{min(numbers):.2f}, {max(numbers):.2f}]"
