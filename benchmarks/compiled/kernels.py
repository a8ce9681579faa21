"""`python -m benchmarks.compiled.kernels`: the length of a step in a TPU v5e's kernel.

The compiler writes the schedule of a kernel as text: a line for each bundle, which
takes one cycle if nothing waits for memory. Each row is compiled in its own process,
which writes that text to a folder. `--report` makes the page from the results alone.
"""

import dataclasses
import json
import math
import pathlib
import re

from benchmarks.cases import Case
from benchmarks.compiled import apart, targets
from benchmarks.compiled.measure import ProgramCase
from benchmarks.compiled.run import versions
from benchmarks.compiled.workers import ROOT
from benchmarks.tables import table

RESULTS = ROOT / "benchmarks" / "results" / "kernels.json"
OTHERS = RESULTS.with_name("compiled.json")
# Our bounds for the bundles of a step, forward and in reverse.
BOUNDS = {
    ("lstm", 256, 64, 1024): (4700, 4700),
    ("lstm", 1024, 16, 768): (1500, 1400),
    ("lstm", 30, 32, 512): (950, 900),
    ("ln_lstm", 1024, 16, 768): (2025, 1890),
    ("lstm", 4096, 2, 128): (250, 250),
}
# The layer of Google's translation model, for several batches and sizes.
SWEEP = tuple(("lstm", 256, B, 1024) for B in (8, 16, 32, 128, 256))
SWEEP += tuple(("lstm", 256, 64, H) for H in (128, 256, 512))
MORE = (("gru", 1024, 16, 768), ("mi_lstm", 1024, 16, 768), ("res_lstm", 1024, 16, 768))
PROGRAMS = ("chunks of a gated delta rule",)
NAMES = {"first_to_last": "forward", "last_to_first": "reverse"}
LIMIT = 1800  # seconds for a row
MODULE = "benchmarks.compiled.kernels"
# What a kernel takes of the fast memory.
FAST = (
    r"%(?:first_to_last|last_to_first).*used_scoped_memory_configs\":\[\{"
    r".*?\"size\":\"(\d+)\""
)
GRID = r"iteration_bounds: \(([\d, ]+)\)"
# A line for each bundle, with a `>` for each loop around it.
BUNDLE = r"^ *0x[0-9a-f]+ +[A-Z]*: (>*)"
WINDOW = (
    r"kind: (in|out)put, shape index: \{\d*\}\] .*?window shape is (\w+)\[([\d,]*)\], "
    r"while the full shape is \w+\[([\d,]*)\]"
)

PAGE = """\
# Loops as kernels of a TPU v5e

Training steps in bfloat16 throughout, by `implementation="pallas_tpu"`. The TPU's
compiler ran; no TPU did: no number here is a time on a device.

- **Bundles** are the length of the kernel's schedule for one step, and what a point of
  its grid takes besides, shared by the steps there. A bundle is a cycle where nothing
  waits for memory.
- **Floor** is that of the matrix units, which take one row of the batch per cycle. A
  schedule that is shorter waits for them.
- **Cycles of XLA's loops** are the compiler's estimate for a step of the loops that run
  by default. It comes from another stage of the compiler: compare it with its like, not
  with bundles.
- **Temporaries** are bytes by the compiler's buffer assignment, outside of fast memory.
- **Moved KB** are the bytes of a step's rows in both loops, which is the least that
  memory has to move; and in brackets with weights and carry, which each kernel loads
  once.
- **Fast memory MB** is what the larger kernel takes of the 128 MB.
- **Compile s** are processor seconds of the compiler for the whole training step, the
  schedules written out. Rows of older reports have no such numbers.
"""


def cases() -> list:
    """The cases of all rows."""
    sizes = [*BOUNDS, *SWEEP, *MORE]
    found = [Case(c, T, B, H, H, "bfloat16", throughout=True) for c, T, B, H in sizes]
    return [*found, *map(ProgramCase, PROGRAMS)]


def measure(number: int, folder: str) -> dict:
    """The record of a row, compiled here; its schedules are read from `folder`."""
    import jax

    from benchmarks.compiled import programs
    from scanrnn import Options
    from scanrnn.executors import pallas_tpu

    case = cases()[number]
    # The plan must ask for the kernels: by default the TPU runs XLA's loops.
    programs._options = lambda machine: Options(
        machine=targets.MACHINES[machine], implementation="pallas_tpu"
    )
    sizes, right = {}, pallas_tpu.lower

    def lower(body, *args):
        new, name = _sizes(body), "reverse" if body.rows.reverse else "forward"
        sizes[name] = max(new, sizes.get(name, new), key=lambda s: s["moved"])
        return right(body, *args)

    pallas_tpu.lower = lower
    fn, args, donate = programs._program(case, "train", "scanrnn", "v5e")
    lowered = jax.jit(fn, donate_argnums=donate).lower(*args)
    begin = programs._processor_seconds()
    compiled = lowered.compile()
    return {
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "compile_processor_seconds": round(programs._processor_seconds() - begin, 1),
        "fast_bytes": max(map(int, re.findall(FAST, compiled.as_text(), re.M))),
        "kernels": [k | sizes[k["name"]] for k in map(_schedule, _schedules(folder))],
    }


def _schedules(folder):
    found = sorted(pathlib.Path(folder).glob("*-final_bundles.txt"))
    return [p for p in found if "schedule-analysis" not in p.name and "_to_" in p.name]


def _schedule(path: pathlib.Path) -> dict:
    """The numbers of bundles in a kernel's schedule, by the depth in its loops."""
    text = path.read_text()
    depths = [len(m[1]) for m in re.finditer(BUNDLE, text, re.M)]
    name = next(name for name in NAMES if name in path.name)
    windows = [m.groups() for m in re.finditer(WINDOW, text)]
    return {
        "name": NAMES[name],
        "point": depths.count(1),
        "step": depths.count(2),
        # Bundles of loops within a step: the text does not say how often they run.
        "inside": sum(depth > 2 for depth in depths),
        # The text has no grid if all rows lie in fast memory.
        "grid": [int(n) for m in re.findall(GRID, text)[:1] for n in m.split(",")],
        "rows": sorted({w for w in windows if w[2] != w[3]}),
    }


def _sizes(body) -> dict:
    """What our own layout of the kernel of a body says of it."""
    from scanrnn.executors import _kernel

    found, parts = _kernel.layout(body)
    rows = sum(math.prod(f.shape) * f.dtype.itemsize for f in (*found.xs, *found.ys))
    held = (*found.weights.values(), *found.carry, *found.carry)
    return {
        "steps": found.steps,
        "grid": [parts, body.rows.length // found.steps],
        "moved": parts * rows * body.rows.length,
        "held": sum(math.prod(f.shape) * f.dtype.itemsize for f in held),
    }


def run(only: str | None) -> None:
    """Compiles the rows whose names contain `only`, or all, and keeps each at once."""
    done = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    for number, case in enumerate(cases()):
        if only and only not in case.name:
            continue
        record = apart.record(MODULE, number, _environment, LIMIT)
        record["case"] = dataclasses.asdict(case)
        done[case.name] = record
        text = json.dumps({"versions": versions(), "rows": done}, indent=1)
        RESULTS.write_text(text + "\n")
        print(
            case.name,
            {k: record.get(k) for k in ("error", "compile_processor_seconds")},
        )


def _environment(folder: str) -> dict[str, str]:
    dump = (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        # To write what other passes make takes minutes.
        "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
    )
    return {**targets.environment("v5e"), "LIBTPU_INIT_ARGS": dump}


def per_step(kernel: dict) -> float:
    """Bundles of a step, with its share of the bundles of a grid point."""
    parts = math.prod(kernel["grid"][:-1])  # parts of the batch
    if not kernel["step"]:
        return parts * kernel["point"]
    return parts * (kernel["step"] + kernel["point"] / steps_of(kernel))


def steps_of(kernel: dict) -> int:
    """The steps at a point of a kernel's grid."""
    return kernel.get("steps") or max(
        int(shape.split(",")[0]) for *_, shape, _ in kernel["rows"]
    )


def markdown(results: dict) -> str:
    """The page of all kernels, in Markdown."""
    others = {}
    if OTHERS.exists():
        rows = json.loads(OTHERS.read_text())["rows"]
        wanted = ("v5e", "train", "scanrnn")
        keys = ("machine", "mode", "contender")
        rows = [r for r in rows if tuple(r[k] for k in keys) == wanted and "case" in r]
        others = {_key(r["case"]): r for r in rows}
    lines = [_line(name, row, others) for name, row in results["rows"].items()]
    head = [
        *("case", "bundles forward", "bound", "bundles reverse", "bound", "floor"),
        *("cycles of XLA's loops", "temporaries MB", "XLA's"),
        *("moved KB", "fast memory MB", "compile s"),
    ]
    where = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    return "\n".join([PAGE, table(head, lines), "", f"Versions: {where}.", ""])


def _key(case: dict) -> str:
    """What names a case, whatever fields older reports did not have."""
    return json.dumps({k: v for k, v in sorted(case.items()) if v})


def _line(name, row, others) -> list[str]:
    if "error" in row:
        return [name, row["error"], *[""] * 10]
    case = row["case"]
    shortest = {}
    for kernel in row["kernels"]:
        one = per_step(kernel)
        shortest[kernel["name"]] = max(one, shortest.get(kernel["name"], 0))
    bounds, floor = ("", ""), ""
    if "cell" in case:
        size = case["T"], case["B"], case["H"]
        bounds = BOUNDS.get((case["cell"], *size), bounds)
        gates = {"gru": 3, "elman": 1}.get(case["cell"], 4)
        floor = f"{gates * case['B'] * case['H'] ** 2 // (4 * 128**2):,}"
    other = others.get(_key(case), {})
    loops = [loop for loop in other.get("loops", ()) if loop["trips"]]
    cycles = " + ".join(f"{loop['cycles']:,} x {loop['trips']}" for loop in loops)
    theirs = f"{other['temp_bytes'] / 1e6:.1f}" if "temp_bytes" in other else ""
    shown = [f"{shortest.get(k, 0):,.0f}" for k in ("forward", "reverse")]
    first, second = (f"{b:,}" if b else "" for b in bounds)
    return [
        *(name, shown[0], first, shown[1], second, floor, cycles),
        *(f"{row['temp_bytes'] / 1e6:.1f}", theirs, _moved(row["kernels"])),
        f"{row['fast_bytes'] / 1e6:.1f}" if "fast_bytes" in row else "",
        f"{row.get('compile_processor_seconds', math.nan):.0f}".replace("nan", ""),
    ]


def _moved(found: list[dict]) -> str:
    """KB that both loops move for a step: of rows, and of all that a kernel reads."""
    if "held" not in found[0]:
        return ""
    least = whole = 0.0
    for kernel in {k["name"]: k for k in found}.values():
        length = kernel["grid"][-1] * steps_of(kernel)
        least += kernel["moved"] / length / 1e3
        whole += (kernel["moved"] + kernel["held"]) / length / 1e3
    return f"{least:,.0f} ({whole:,.0f})"


if __name__ == "__main__":
    apart.main(__doc__, measure, run, RESULTS, markdown)
