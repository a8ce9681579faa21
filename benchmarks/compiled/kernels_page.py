"""The page of kernels for a TPU, from the results alone."""

import json

from benchmarks.compiled import apart, targets
from benchmarks.compiled.schedules import per_step, steps_of
from benchmarks.compiled.workers import ROOT
from benchmarks.tables import table

OTHERS = ROOT / "benchmarks" / "results" / "compiled.json"
# Our bounds for the bundles of a step, forward and in reverse. With layer norm they are
# 1.35 times those of the LSTM; those of other cells are the LSTM's.
BOUNDS = {
    ("lstm", 256, 64, 1024): (4700, 4700),
    ("lstm", 1024, 16, 768): (1500, 1400),
    ("lstm", 30, 32, 512): (950, 900),
    ("ln_lstm", 256, 64, 1024): (6345, 6345),
    ("ln_lstm", 1024, 16, 768): (2025, 1890),
    ("ln_lstm", 30, 32, 512): (1282, 1215),
    ("gru", 1024, 16, 768): (1500, 1400),
    ("mi_lstm", 1024, 16, 768): (1500, 1400),
    ("res_lstm", 1024, 16, 768): (1500, 1400),
    ("lstm", 4096, 2, 128): (250, 250),
}
PAGE = """\
# Loops as kernels of a TPU

Training steps, by `implementation="pallas_tpu"`: cells in bfloat16 throughout, programs
of other people in float32. The TPU's compiler ran; no TPU did: no number here is a time
on a device.

- **Bundles** are the length of the kernel's schedule for one step, and what a point of
  its grid takes besides, shared by the steps there. A bundle is a cycle where nothing
  waits for memory.
- **Floor** is that of the matrix units, which take one row of the batch per cycle. A
  schedule that is shorter waits for them.
- **Cycles of XLA's loops** are the compiler's estimate for a step of the loops that run
  by default. It comes from another stage of the compiler: compare it with its like, not
  with bundles.
- **Temporaries** are bytes by the compiler's buffer assignment, outside of fast memory.
  **XLA's** are those of the loops that run by default.
- **Moved KB** are the bytes of a step's rows in both loops, which is the least that
  memory has to move; in brackets with weights and carry, which each kernel loads once;
  and the rows as they lie in memory, in tiles of 8 x 128 numbers that may be partly
  full.
- **Fast memory MB** is what the larger kernel takes of the 128 MB of a TPU v5e, or of
  the 64 MB of a core of a TPU v5p.
- **Compile s** are processor seconds of the compiler for the whole training step, the
  schedules written out.
"""
TWO_CORES = """\
## TPU v5p

A chip of this TPU has two cores, which the compiler drives as one device. Each core
runs the whole loop for one half of the batch, with the weights in its own fast memory.
So the bundles of a step are those of a half. **One core** are those of the same kernel
if it is not cut.
"""


def markdown(results: dict) -> str:
    """The page of all kernels, in Markdown."""
    others = {}
    if OTHERS.exists():
        rows = json.loads(OTHERS.read_text())["rows"]
        wanted = ("v5e", "train", "scanrnn")
        keys = ("machine", "mode", "contender")
        rows = [r for r in rows if tuple(r[k] for k in keys) == wanted and "case" in r]
        others = {_key(r["case"]): r for r in rows}
    rows = {machine: [] for machine in ("v5e", targets.V5P)}
    for name, row in results["rows"].items():
        rows[row["machine"]].append((name.removeprefix(f"{row['machine']}-"), row))
    lines = [_line(_titled(name, row), row, others) for name, row in rows["v5e"]]
    head = [
        *("case", "bundles forward", "bound", "bundles reverse", "bound", "floor"),
        *("cycles of XLA's loops", "temporaries MB", "XLA's"),
        *("moved KB", "fast memory MB", "compile s"),
    ]
    parts = [PAGE, "## TPU v5e\n", table(head, lines), ""]
    lines = [_line_of_two(_titled(name, row), row) for name, row in rows[targets.V5P]]
    head = [
        *("case", "bundles forward", "one core", "bundles reverse", "one core"),
        *("floor", "temporaries MB", "fast memory MB", "compile s"),
    ]
    return "\n".join(
        [*parts, TWO_CORES, table(head, lines), "", apart.source(results), ""]
    )


def _key(case: dict) -> str:
    """What names a case, whatever fields older reports did not have."""
    return json.dumps({k: v for k, v in sorted(case.items()) if v})


def _titled(name: str, row: dict) -> str:
    """The name of a row; that of a program does not say its dtype."""
    return name if "cell" in row["case"] else f"{name}, float32"


def _line(name, row, others) -> list[str]:
    if "error" in row:
        return [name, row["error"], *[""] * 10]
    case, bounds = row["case"], ("", "")
    if "cell" in case:
        bounds = BOUNDS.get(tuple(case[k] for k in ("cell", "T", "B", "H")), bounds)
    other = others.get(_key(case), {})
    loops = [loop for loop in other.get("loops", ()) if loop["trips"]]
    cycles = " + ".join(f"{loop['cycles']:,} x {loop['trips']}" for loop in loops)
    theirs = f"{other['temp_bytes'] / 1e6:.1f}" if "temp_bytes" in other else ""
    forward, reverse = _bundles(row["kernels"])
    first, second = (f"{b:,}" if b else "" for b in bounds)
    return [
        *(name, forward, first, reverse, second, _floor(case, 4), cycles),
        *(_megabytes(row["temp_bytes"]), theirs, _moved(row["kernels"])),
        *(_megabytes(row["fast_bytes"]), f"{row['compile_seconds']:.0f}"),
    ]


def _line_of_two(name, row) -> list[str]:
    if "error" in row:
        return [name, row["error"], *[""] * 7]
    forward, reverse = _bundles(row["kernels"])
    one = _bundles(row["on_one_core"])
    return [
        *(name, forward, one[0], reverse, one[1], _floor(row["case"], 8)),
        *(_megabytes(row["temp_bytes"]), _megabytes(row["fast_bytes"])),
        f"{row['compile_seconds']:.0f}",
    ]


def _bundles(found: list[dict]) -> list[str]:
    """The bundles of a step, forward and in reverse."""
    most = {}
    for kernel in found:
        most[kernel["name"]] = max(per_step(kernel), most.get(kernel["name"], 0))
    return [f"{most.get(name, 0):,.0f}" for name in ("forward", "reverse")]


def _floor(case: dict, units: int) -> str:
    """Cycles that a number of matrix units, each 128 x 128, need for a step."""
    if "cell" not in case:
        return ""
    gates = {"gru": 3, "elman": 1}.get(case["cell"], 4)
    return f"{gates * case['B'] * case['H'] ** 2 // (units * 128**2):,}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"


def _moved(found: list[dict]) -> str:
    """KB that both loops move for a step: of rows, of all they read, and in tiles."""
    least = whole = tiles = 0.0
    for kernel in {k["name"]: k for k in found}.values():
        length = kernel["grid"][-1] * steps_of(kernel)
        least += kernel["moved"] / length / 1e3
        whole += (kernel["moved"] + kernel["held"]) / length / 1e3
        tiles += kernel["moved_tiles"] / length / 1e3
    return f"{least:,.0f} ({whole:,.0f}); {tiles:,.0f}"
