"""The pages of the results: what was compiled, and what was timed."""

import json
import pathlib

from benchmarks import measure, origin
from benchmarks.cases import MODES
from benchmarks.compiled import apart
from benchmarks.compiled.targets import TARGETS
from benchmarks.parallel import loops, rows
from benchmarks.parallel.compiled import of
from benchmarks.tables import table

COMPILED = """\
# Affine loops in parallel over time, compiled

Training steps. The compilers for an H100 and a TPU v5e ran; no GPU or TPU did: no
number here is a time on a device.

- **planned loops** and **in parallel** are `implementation="planned"` and
  `"associative"` of ours.
- **associative_scan by hand** is `jax.lax.associative_scan` with a gradient written by
  hand, which keeps factors and values alone. **chunks by hand** runs chunks of 16 steps
  side by side, and then again from the carry before each chunk.
- **products of chunks** are `"chunkwise"`, for cells whose memories are matrices; they
  have 4 heads.
- **launches** are kernels, library calls and copies. **cycles** are the estimate of the
  TPU's compiler. **temporaries** are bytes by the compiler's buffer assignment; on a
  TPU, they are those outside of its fast memory.
- **compile s** are processor seconds of the compiler.
"""
TIMED = """\
# Affine loops in parallel over time, timed on a CPU

The ways to run a loop took turns. Outputs, loss and every gradient are those of
`lax.scan`, or there are no numbers. **planned loops** are what the planner chooses by
itself on this CPU. Ratios are to `lax.scan`, with their 95 % interval. Each row has at
least 30 rounds; its medians are not settled if they are not known to 3 %.
"""
MEMORIES = """\
The cells of the next tables have matrix memories, in 4 heads. There **planned loops**
are `implementation="planned"`, and **products of chunks** are `"chunkwise"`. The
planner takes the one with the better estimate.
"""
# The columns of a compiled row: key, title, unit, format.
COLUMNS = (
    ("launches", "launches", 1, ",.0f"),
    ("cycles", "cycles", 1, ",.0f"),
    ("temp_bytes", "temporaries MB", 1e6, ",.2f"),
    ("compile_seconds", "compile s", 1, ".1f"),
)


def write(folder: pathlib.Path) -> None:
    """Writes the page of each results file in a folder."""
    for path in folder.glob("parallel*.json"):
        page = timed if "-" in path.stem else compiled
        path.with_suffix(".md").write_text(page(json.loads(path.read_text())))


def compiled(results: dict) -> str:
    """The page of all compiled rows."""
    parts = [COMPILED]
    for machine, target in TARGETS.items():
        records = [r for r in results["rows"] if r["machine"] == machine]
        if records:
            shown = COLUMNS if machine == "v5e" else (COLUMNS[0], *COLUMNS[2:])
            head = ("loop", "T", "B", "D", "run as", *(c[1] for c in shown))
            lines = [_line(record, shown) for record in records]
            parts += [f"## {target.title}\n", table(head, lines), ""]
    return "\n".join([*parts, apart.source(results), ""])


def _line(record, shown):
    row = of(record)
    size = f"{row.T:,}", str(row.B), str(row.D)
    if "error" in record:
        return [row.name, *size, row.form, _reason(record["error"]), *[""] * 3]
    numbers = (format(record[key] / unit, how) for key, _, unit, how in shown)
    return [row.name, *size, row.form, *numbers]


def _reason(error):
    """The reason in few words."""
    return "does not fit into memory" if "RESOURCE_EXHAUSTED" in error else error[:60]


def timed(results: dict) -> str:
    """The page of all timed rows."""
    parts = [TIMED, origin.line(results), ""]
    memories = [r for r in results["rows"] if r["name"] in loops.MEMORIES]
    others = [r for r in results["rows"] if r not in memories]
    parts += _timed(others, loops.FORMS, "")
    if memories:
        forms = loops.SCAN, loops.PLANNED, loops.PRODUCTS
        parts += [MEMORIES, *_timed(memories, forms, "Matrix memories: ")]
    return "\n".join(parts)


def _timed(records, forms, title):
    """The tables of some rows."""
    parts, head = [], ["loop", "T", "B", "D"]
    shown = [form for form in forms if form != loops.SCAN]
    for mode in MODES:
        lines = [_times(record, mode, shown) for record in records]
        cells = table([*head, "lax.scan ms", *shown], lines)
        parts += [f"## {title}{mode}\n", cells, ""]
    for key, name, unit, _ in COLUMNS[2:]:
        lines = [_sizes(record, key, unit, forms) for record in records]
        parts += [f"## {title}{name}, train\n", table([*head, *forms], lines), ""]
    return parts


def _size(record):
    name = record["name"] + measure.mark(record)
    return [name, f"{record['T']:,}", str(record["B"]), str(record["D"])]


def _times(record, mode, shown):
    plain = record["contenders"][loops.SCAN][mode]["median"]
    cells = [_ratio(record, mode, form) for form in shown]
    return [*_size(record), f"{1e3 * plain:.3g}", *cells]


def _ratio(record, mode, form):
    if form not in record["contenders"]:
        return ""
    estimate = measure.ratio_interval(record, mode, form, loops.SCAN)
    if estimate is None:
        return "wrong"
    same = measure.same_program(record, mode, form, loops.SCAN)
    words = " (the same program)" if same else ""
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]{words}"


def _sizes(record, key, unit, forms):
    found = (record["contenders"].get(form, {}).get("train") for form in forms)
    return [*_size(record), *(f"{one[key] / unit:.3g}" if one else "" for one in found)]


def shares(record: dict) -> str:
    """A line of the docs: a memory in chunks, relative to `lax.scan`."""
    cells = [_ratio(record, mode, loops.PRODUCTS) for mode in MODES]
    ours, theirs = (
        record["contenders"][form]["train"]["temp_bytes"]
        for form in (loops.PRODUCTS, loops.SCAN)
    )
    name = record["name"] + measure.mark(record)
    return f"| {name} | {' | '.join(cells)} | {ours / theirs:.2f} |"


def bounded(results: dict) -> dict[str, float]:
    """For each loop at the size of the bound, its H100 launches over `lax.scan`'s."""
    launches = {of(record).key: record.get("launches") for record in results["rows"]}

    def taken(name, form):
        return launches[rows.Row("h100", name, *rows.BOUND, form).key]

    return {n: taken(n, loops.OURS) / taken(n, loops.SCAN) for n in loops.LOOPS}
