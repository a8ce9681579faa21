"""Makes the report (Markdown and PNG) from the results file (JSON), without compilers.

python -m benchmarks.compiled --report
"""

import json
import pathlib

from benchmarks.aims import geometric_mean, worst
from benchmarks.compiled import picture, summary, thunks
from benchmarks.compiled.aims import AIMS
from benchmarks.compiled.measure import Row
from benchmarks.compiled.suite import OURS, PEER, PLAIN
from benchmarks.compiled.targets import TARGETS
from benchmarks.report import aims_table
from benchmarks.tables import table

KINDS = """\
The real compilers of both machines ran; the machines did not: no number here is a time
on a device. Each is one of these.

- **Launches** (H100) are counted in the compiled program: all that the runtime starts
  on the device, that is kernels, library calls and copies of memory, a loop's counter
  among them. A loop counts as its body times its number of iterations. A launch costs
  2 to 5 us, about 1 us inside a CUDA graph. Kernels are not autotuned: there was no
  device to time them on.
- **Started by the host** (H100) is counted in what XLA's runtime executes. A CUDA graph
  is one start, however much it holds; a kernel outside of graphs is one start, too. For
  a loop outside of graphs the host also starts the condition and reads its result. In
  the same column are the kernels on the device, with copies and those inside graphs,
  and an estimate of what it takes to start all of them: 3 us for each start by the host
  and 1.3 us for each kernel, without the time they compute. There is none where a step
  has fewer than two kernels: then a kernel runs many steps, and computes for longer
  than it takes to start. Times on an H200 are in `device-nvidia-h200.md`.
- **Cycles** (TPU v5e) are the compiler's own estimate, summed over the instructions it
  scheduled; a loop counts as its body times its number of iterations. Scalar arithmetic
  and copies that overlap other work have no estimate. Where an instruction on arrays
  has none, `?` follows the number. A program with a custom kernel has no sum.
- **Per step** counts the loops over the steps. Work done once for a chunk, or once for
  all steps, is counted under "in all" only.
- **Temporaries** are bytes by the compiler's buffer assignment, without arguments and
  results. For a TPU only memory outside its fast memory (128 MB) counts; small cases
  fit into the fast memory altogether.
- **Compile s** are processor seconds of the compiler on the machine that ran it."""

# The number of cases that are shown with the instructions of their loops.
SHOWN = {"train": 3, "forward": 1}


def write(source: pathlib.Path) -> pathlib.Path:
    """Writes `NAME.md` and `NAME.png` beside `NAME.json`; gives the Markdown's path."""
    results = json.loads(source.read_text())
    target, image = source.with_suffix(".md"), source.with_suffix(".png")
    picture.draw(results["rows"], image)
    target.write_text(markdown(results, image.name))
    return target


def markdown(results: dict, image: str) -> str:
    """The whole report."""
    rows = results["rows"]
    parts = [
        "# What a step costs on machines that are not here",
        KINDS,
        _where(results),
        "## Aims",
        aims_table(AIMS, rows),
        f"![relative to lax.scan]({image})",
    ]
    for machine, target in TARGETS.items():
        parts += [f"## {target.title}"]
        for mode in SHOWN:
            parts += [_table(rows, machine, mode), *_dearest(rows, machine, mode)]
            parts += [_programs(rows, machine, mode)]
    parts += [_failures(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _where(results):
    versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    dirty = " with local changes" if results["dirty"] else ""
    seconds = sum(
        row.get("lower_seconds", 0) + row.get("compile_seconds", 0)
        for row in results["rows"]
    )
    return "\n".join(
        [
            f"- Versions: {versions}",
            f"- Commit: {results['commit']}{dirty}, {results['date']}",
            f"- {len(results['rows'])} programs, {seconds / 60:.0f} minutes of one"
            " processor to trace and to compile them",
            f"- `{OURS}` and `{PLAIN}` run the same naive step; `{PEER}` runs its own"
            " cell, where it has one. Training is forward, gradient of every parameter"
            " and its update. D = H; bf16: operands of products, summed in float32; all"
            " bf16: weights, inputs and carries, cast before the loop, and the rest.",
        ]
    )


def _table(rows, machine, mode):
    """A table with a case on each line: costs of a step and of the whole program."""
    unit = summary.UNITS[machine]
    cases = list(summary.cases(rows, machine, mode))
    if not cases:
        return ""
    loops = "forward + reverse loop" if mode == "train" else "the loop"
    heads = [f"{name}: {unit} per step" for name in (OURS, PLAIN, PEER)]
    heads += ["other loops", f"{unit} in all", "temporaries MB", "compile s"]
    started = any("host_starts" in record for case in cases for record in case.values())
    if started:
        heads.append("started by the host; kernels; us a step")
    about = (
        f"**{mode}**: {unit} of {loops} in each step; then scanrnn's, and in brackets"
        " as a multiple of lax.scan's"
    )
    lines = []
    for case in cases:
        cells = [_per_step(case.get(name)) for name in (OURS, PLAIN, PEER)]
        cells += [str(summary.per_step(case[OURS]).beside) if OURS in case else "-"]
        cells += [_against(case, unit), _against(case, "temp_bytes", 1e6, ".1f")]
        cells += [_against(case, "compile_seconds", 1, ".1f")]
        cells += [_started(case)] if started else []
        lines.append([_name(case), *cells])
    means = [
        _mean(rows, machine, mode, what)
        for what in (unit, "temp_bytes", "compile_seconds")
    ]
    means += [""] if started else []
    lines.append(["**geometric mean; worst**", "", "", "", "", *means])
    return f"{about}\n\n{table(['case', *heads], lines)}"


def _started(case):
    """Starts by the host and kernels in a step, for scanrnn and for lax.scan."""
    found = []
    for record in (case.get(OURS, {}), case.get(PLAIN, {})):
        if "host_starts" not in record:
            return "-"
        T = record["case"]["T"]
        each = thunks.Starts(record["host_starts"] / T, record["device_kernels"] / T)
        # A kernel that runs many steps computes for longer than it takes to start.
        estimate = f"{each.microseconds:.1f}" if each.kernels >= 2 else "-"
        found.append(f"{each.host:.2f}; {each.kernels:.1f}; {estimate}")
    return "{} ({})".format(*found)


def _programs(rows, machine, mode):
    """A table of other people's programs, with the costs of each as a whole."""
    unit = summary.UNITS[machine]
    lines = [
        [
            next(iter(case.values()))["case"]["program"],
            _against(case, unit),
            _against(case, "temp_bytes", 1e6, ".1f"),
            _against(case, "compile_seconds", 1, ".1f"),
        ]
        for case in summary.cases(rows, machine, mode, programs=True)
    ]
    if not lines:
        return ""
    about = (
        f"**other people's programs, {mode}**: accelerated, and in brackets as a"
        " multiple of what they are without"
    )
    heads = ["program", f"{unit} in all", "temporaries MB", "compile s"]
    return f"{about}\n\n{table(heads, lines)}"


def _name(case):
    sizes = next(iter(case.values()))["case"]
    dtype = {"float32": "f32", "bfloat16": "bf16"}[sizes["dtype"]]
    dtype = f"all {dtype}" if sizes.get("throughout") else dtype
    return f"{sizes['cell']} T={sizes['T']} B={sizes['B']} H={sizes['H']} {dtype}"


def _per_step(record):
    if record is None:
        return "-"
    step = summary.per_step(record)
    return " + ".join(f"{n:,.0f}" for n in step[:2] if n is not None) or "no loop"


def _against(case, what, unit=1, form=",.0f"):
    if OURS not in case:
        return "-"
    shown = f"{case[OURS][what] / unit:{form}}"
    if what == "cycles" and case[OURS]["unpriced"]:
        shown += "?"
    factor = summary.ratio(case, what, OURS, PLAIN)
    return shown if factor is None else f"{shown} ({factor:.2f})"


def _mean(rows, machine, mode, what):
    ratios = summary.ratios(rows, machine, what, mode=mode)
    if not ratios:
        return "-"
    return f"**{geometric_mean(ratios):.2f}**; {worst(ratios):.2f}"


def _dearest(rows, machine, mode):
    """Instructions of those programs of ours that compare worst with lax.scan."""
    unit = summary.UNITS[machine]
    cases = [
        case
        for case in summary.cases(rows, machine, mode)
        if any(loop["hot"] for loop in case.get(OURS, {}).get("loops", []))
    ]
    cases.sort(key=lambda c: summary.ratio(c, unit, OURS, PLAIN) or 0, reverse=True)
    if cases:
        yield f"What our loops hold where they stand worst against lax.scan, {mode}:"
    for case in cases[: SHOWN[mode]]:
        lines = [f"**{_name(case)}**", "", "```text"]
        for loop in case[OURS]["loops"]:
            lines += hot_lines(loop, machine)
        yield "\n".join([*lines, "```"])


def hot_lines(loop: dict, machine: str) -> list[str]:
    """A loop and its instructions as lines of text."""
    unit = summary.UNITS[machine]
    indent = "  " * loop["depth"]
    trips = "?" if loop["trips"] is None else loop["trips"]
    lines = [f"{indent}{loop['name']}: {trips} iterations of {loop[unit]:,} {unit}"]
    for one in loop["hot"]:
        price = f"{one['cycles']:>9,}  " if unit == "cycles" else "  "
        kind = one["kind"].replace("__custom_fusion ", "").replace("__triton", "triton")
        words = f"{one['name']:<40} {kind:<30} {one['type']}  {one['path']}"
        lines.append(f"{indent}{price}{words}".rstrip())
    return lines


def _failures(rows):
    failed = [f"- {Row.of(row).name}: {row['error']}" for row in rows if "error" in row]
    return "\n".join(["## Not compiled", "", *failed]) if failed else ""
