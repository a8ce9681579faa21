"""What compiled programs say of the answer "2 to 5 times the vendor's" on a GPU.

Nothing is measured here: the counts are those of `benchmarks/results/compiled.json`.
"""

import json
import pathlib

from benchmarks import steps
from benchmarks.aims import geometric_mean
from benchmarks.compiled import summary, thunks
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
# FlashRNN's size, and milliseconds read from the plot in its repository, forward and
# training. Its paper names an A100 and an H100; cuDNN is torch's nn.LSTM in float16.
FLASH = {"cell": "lstm", "T": 1024, "B": 16, "D": 768, "H": 768, "dtype": "bfloat16"}
PUBLISHED = {
    "cuDNN *": (2.01, 5.19),
    "FlashRNN, fused *": (4.87, 13.61),
    "FlashRNN, alternating *": (10.79, 26.49),
}
ABOUT_FLASH = f"""\
FlashRNN's size (an LSTM, T={FLASH["T"]}, B={FLASH["B"]}, H={FLASH["H"]}, half
precision): microseconds for each time step. Rows with * are published, by others, on
another GPU: they are times. Ours are **no times**: kernels of a step, counted, times
{thunks.NODE} us, an estimate of what it takes to start a kernel inside a CUDA graph.
A real time is larger: this leaves out computing, and what the host starts. It must not
be read as a comparison."""
MODES = ("forward", "train")
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
    about = {"commit": results["commit"], "date": results["date"]}
    return about | {"ratios": ratios, "flash": _flash(results["rows"])}


def _flash(rows):
    """Kernels for each time step at FlashRNN's size, by contender and mode."""
    found = {name: {} for name in PAIR}
    for mode in MODES:
        for by_name in summary.cases(rows, "h100", mode):
            case = by_name[OURS]["case"]
            if case["throughout"] or any(case[k] != v for k, v in FLASH.items()):
                continue
            for name in PAIR:
                found[name][mode] = by_name[name]["launches"] / FLASH["T"]
    return found


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
    return [about, table(("cell", *PAIR), lines), says, *_flash_table(found["flash"])]


def _flash_table(flash):
    lines = [
        [name, *(f"{1e3 * milliseconds / FLASH['T']:.1f}" for milliseconds in times)]
        for name, times in PUBLISHED.items()
    ]
    for name, kernels in flash.items():
        cells = [
            f"{thunks.NODE * kernels[mode]:.1f} ({kernels[mode]:.1f} kernels)"
            if mode in kernels
            else "-"
            for mode in MODES
        ]
        lines.append([f"{name}, estimate", *cells])
    return [ABOUT_FLASH, table(("who", "forward", "training"), lines)]


def _shown(numbers):
    mean = geometric_mean(numbers)
    return f"{mean:.2f} [{min(numbers):.2f}, {max(numbers):.2f}]"
