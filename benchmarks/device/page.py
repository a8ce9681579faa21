"""The page of what was timed on a GPU, and what the terminal says of a row."""

import json
import pathlib

from benchmarks import measure, origin
from benchmarks.cases import MODES
from benchmarks.device.rows import (
    GRAPH,
    HAND,
    KERNEL,
    LOOPS,
    OURS,
    SCAN,
    TOLERANCE,
    rows,
)
from benchmarks.tables import table

ABOUT = """\
# Loops on a GPU, timed

{device}: bfloat16 products of 8192 x 8192 at {half:.0f} TFLOP/s, float32 ones (by TF32,
as is usual on a GPU, also in torch) at {single:.0f} TFLOP/s, and memory at
{memory:.1f} TB/s. {origin}

The ways to run a program take turns in one process, {rounds} rounds. Times are
milliseconds of a call that is waited for: medians, and in brackets the ratio to
`lax.scan` with its 95 % interval. Outputs, loss and all gradients were compared with
float64, or for programs of other people with `lax.scan`, before anything was timed:
*wrong* is what was off by more than {tolerance:.0%}. Training is a loss, its gradients
and an update. Where the planner chose our kernels, XLA's loops (`planned`) were timed
beside them; where it chose XLA's loops, our kernels if they could run; where it chose
another way, both. The last column is what it chose, as a multiple of torch's time in a
CUDA graph. cuDNN has no layer norm: in rows with `ln` it runs an LSTM without."""
CHECKS = """\
## Checked

`scanrnn.selfcheck` ran {cells} cells by {ways} on the device, and compared outputs and
all gradients with `lax.scan` (products of float32 were exact): {wrong} of {ran} checks
were wrong. Largest errors: {most}. Not run, because it refuses them: {refused}."""
# The columns of the tables besides that of `lax.scan`.
COLUMNS = {
    OURS: "chosen by the planner",
    LOOPS: "`planned`",
    KERNEL: "`pallas_gpu`",
    HAND: "`associative_scan` by hand",
    GRAPH: "cuDNN in a CUDA graph",
}


def line(record: dict) -> str:
    """One line on a row."""
    if "error" in record:
        return f"{record['name']}: {record['error']}"
    words = []
    for who, found in record["contenders"].items():
        shown = [f"{1e3 * found[m]['median']:.3g} ms" for m in MODES if m in found]
        words.append(f"{who} {found.get('absent') or ', '.join(shown) or 'wrong'}")
    return f"{record['name']}{measure.mark(record)}: {'; '.join(words)}"


def write(path: pathlib.Path) -> pathlib.Path:
    """Writes the page beside the results."""
    page = path.with_suffix(".md")
    page.write_text(markdown(json.loads(path.read_text())))
    return page


def markdown(results: dict) -> str:
    """The page."""
    records = [record for record in results["rows"] if "error" not in record]
    failed = [line(record) for record in results["rows"] if "error" in record]
    parts = [_about(results, records)]
    for mode in MODES:
        heads = ["", "`lax.scan`", *COLUMNS.values(), "chosen / cuDNN in a graph"]
        body = [_row(record, mode) for record in records]
        parts.append(f"**{mode}**\n\n{table(heads, body)}")
    parts += failed
    if checks := results.get("checks"):
        parts.append(_checked(checks))
    return "\n\n".join(parts) + "\n"


def short(*reports: dict) -> str:
    """A table for the documentation: what the planner chose, by ratios.

    The last column is the commit of the report that a row is in.
    """
    pairs = [(mode, other) for mode in MODES for other in (SCAN, GRAPH)]
    heads = [f"{m} / {'`lax.scan`' if o == SCAN else COLUMNS[o]}" for m, o in pairs]
    found = {
        record["name"]: [
            record["name"] + measure.mark(record),
            *(_interval(measure.ratio_interval(record, m, OURS, o)) for m, o in pairs),
            results["commit"],
        ]
        for results in reports
        for record in results["rows"]
    }
    body = [found[row.name] for row in rows() if row.name in found]
    (device,) = {results["machine"]["device"] for results in reports}
    return table([f"on an {device}", *heads, "commit"], body)


def _about(results, records):
    about = results["machine"]
    rounds = {
        times["rounds"]
        for record in records
        for found in record["contenders"].values()
        for mode, times in found.items()
        if mode in MODES
    }
    return ABOUT.format(
        device=about["device"],
        half=about["gemm_bfloat16"] / 1e3,
        single=about["gemm_float32"] / 1e3,
        memory=about["memory"] / 1e3,
        origin=f"{origin.of_versions(results)} {origin.of_commit(results)}",
        rounds="-".join(map(str, sorted({min(rounds), max(rounds)}))),
        tolerance=TOLERANCE,
    )


def _checked(checks):
    """What `scanrnn.selfcheck` found, in words."""
    ran = [check for check in checks if check["right"] is not None]
    most = {}
    for check in ran:
        most[check["dtype"]] = max(most.get(check["dtype"], 0.0), check["error"])
    return CHECKS.format(
        wrong=sum(not check["right"] for check in ran),
        ran=len(ran),
        cells=len({check["cell"] for check in ran}),
        ways=", ".join(sorted({f"`{check['implementation']}`" for check in ran})),
        most=", ".join(f"{error:.1e} in {dtype}" for dtype, error in most.items()),
        refused=", ".join(sorted({c["cell"] for c in checks if c["right"] is None})),
    )


def _row(record, mode):
    cells = [_cell(record, mode, who) for who in (SCAN, *COLUMNS)]
    estimate = measure.ratio_interval(record, mode, OURS, GRAPH)
    return [record["name"] + measure.mark(record), *cells, _interval(estimate)]


def _cell(record, mode, who):
    found = record["contenders"].get(who, {"absent": ""})
    if mode not in found:
        return "-" if "absent" in found else f"wrong ({found['gate']['error']:.0%})"
    shown = f"{1e3 * found[mode]['median']:.3g}"
    estimate = measure.ratio_interval(record, mode, who, SCAN)
    if who == SCAN or estimate is None:
        return shown
    return f"{shown} ({_interval(estimate)})"


def _interval(estimate):
    if estimate is None:
        return "-"
    digits = 2 if estimate.value >= 0.1 else 3
    value, *ends = (f"{x:.{digits}f}" for x in estimate[:3])
    return f"{value} [{', '.join(ends)}]"
