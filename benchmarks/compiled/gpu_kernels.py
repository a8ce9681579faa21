"""`python -m benchmarks.compiled.gpu_kernels`: what a kernel for an H100 takes.

The assembler says of each kernel how many registers a thread has, and what did not fit
into them; XLA says how many threads a program has, and how much shared memory. A row is
compiled in a process of its own. `--report` writes the page again from the results
alone.
"""

import dataclasses
import importlib.metadata
import pathlib
import re
import subprocess

import jax

from benchmarks.cases import Case
from benchmarks.compiled import apart, measure, programs, targets
from benchmarks.compiled.measure import ProgramCase
from benchmarks.compiled.workers import ROOT
from benchmarks.tables import table
from scanrnn import Options
from scanrnn.machines import MACHINES

MODULE = "benchmarks.compiled.gpu_kernels"
RESULTS = ROOT / "benchmarks" / "results" / "gpu_kernels.json"
NAMES = {"first_to_last": "forward", "last_to_first": "reverse"}
LIMIT = 900  # seconds of a row
# Cells of which a program runs some examples, cells of which a program has a slice of
# the features, and programs without products in the loop.
CASES = (
    *(Case(cell, 4096, 2, 256, 128, dtype) for cell in ("lstm", "gru", "elman")
      for dtype in ("float32", "bfloat16")),
    Case("lstm", 512, 64, 64, 64, "bfloat16", throughout=True),
    Case("ln_lstm", 512, 64, 64, 64, "bfloat16", throughout=True),
    Case("lstm", 30, 32, 512, 512, "bfloat16"),
    Case("lstm", 100, 64, 512, 512),
    Case("ln_lstm", 100, 64, 512, 512),
    Case("lstm", 256, 64, 1024, 1024, "bfloat16"),
    Case("gru", 1024, 16, 768, 768, "bfloat16"),
    # Each program of the kernel runs one of the heads.
    ProgramCase("LSTM with 4 heads"),
    ProgramCase("advantage estimation"),
    ProgramCase("cells.indrnn"),
    ProgramCase("cells.sru"),
    ProgramCase("cells.mingru"),
    # Its products are of matrices that change at each step.
    ProgramCase("chunks of a gated delta rule"),
)  # fmt: skip
ENTRY = (
    r"Compiling entry function '(\w+)'.*?"
    r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers"
)
LAUNCH = r" ({}\S*) grid: \S+.*? threads: \[(\d+),.*? shared_memory: (\d+) bytes"
# The words in which an executor refuses a plan.
REFUSED = r"cannot run this step: (.*) \(leave it None"

PAGE = """\
# Loops as kernels of an H100

Training steps, by `implementation="pallas_gpu"`: both loops are one launch each. The
compiler and the assembler for an H100 ran; no GPU did: no number here is a time on a
device.

- **Registers** are those of a thread; a thread has 255 at most. **Spilled** are bytes
  that did not fit into them.
- **Threads** are those of a program. **Shared KB** is the shared memory that it takes;
  a multiprocessor of an H100 has 227 KB for a program.
- **Starts by the host** are launches and graphs of the whole training step, beside
  those of XLA's loops and of `lax.scan`.
- **Compile s** are processor seconds of the compiler.
"""


def kernels_of(text: str) -> list[dict]:
    """The kernels that the assembler speaks of, with what they take."""
    found = []
    for name, stores, loads, registers in re.findall(ENTRY, text, re.S | re.M):
        known = [kind for start, kind in NAMES.items() if name.startswith(start)]
        if known:
            found.append(
                {
                    "name": known[0],
                    "registers": int(registers),
                    "spilled": int(stores) + int(loads),
                }
            )
    return found


def launches_of(text: str) -> dict[str, dict]:
    """The threads and the shared memory of the kernels that XLA would launch."""
    lines = re.findall(LAUNCH.format(f"(?:{'|'.join(NAMES)})"), text)
    return {
        next(kind for start, kind in NAMES.items() if name.startswith(start)): {
            "threads": int(threads),
            "shared_bytes": int(shared),
        }
        for name, threads, shared in lines
    }


def row(name: str, folder: str) -> dict:
    """The record of a row, by the compilers in this process."""
    case = next(case for case in CASES if case.name == name)
    starts = {}
    # On a machine of another name no estimate chooses our kernels.
    loops = dataclasses.replace(MACHINES["h100"], kind="another")
    programs._options = lambda _: Options(machine=loops)
    for contender in ("lax_scan", "scanrnn"):
        planned = measure.measure(measure.Row("h100", case, "train", contender))[0]
        starts[contender] = planned["host_starts"]
    temporaries = planned["temp_bytes"]
    # Who is asked for; a plan by any other name would be another program.
    programs._options = lambda machine: Options(
        machine=targets.MACHINES[machine], implementation="pallas_gpu"
    )
    try:
        record, _ = measure.measure(measure.Row("h100", case, "train", "scanrnn"))
    except ValueError as error:
        if reason := re.search(REFUSED, str(error)):
            about = {"starts": starts, "temp_bytes_of_loops": temporaries}
            return {"refused": reason[1], **about}
        raise
    fn, args, donate = programs._program(case, "train", "scanrnn", "h100")
    options = targets.ALL["h100"].options | {"xla_dump_to": folder}
    jax.jit(fn, donate_argnums=donate).lower(*args).compile(compiler_options=options)
    paths = sorted(pathlib.Path(folder).glob("*.ptx"))
    texts = [_assembled(path) for path in paths if ".entry" in path.read_text()]
    (sequence,) = pathlib.Path(folder).glob("*thunk_sequence_after_thunk_passes.txt")
    launched = launches_of(sequence.read_text())
    kernels = kernels_of("\n".join(texts))
    return {
        "kernels": [kernel | launched[kernel["name"]] for kernel in kernels],
        "starts": {**starts, "pallas_gpu": record["host_starts"]},
        "temp_bytes": record["temp_bytes"],
        "temp_bytes_of_loops": temporaries,
        "compile_seconds": round(record["compile_seconds"], 1),
    }


def _assembled(path: pathlib.Path) -> str:
    """What the assembler says of a file."""
    files = importlib.metadata.files("nvidia-cuda-nvcc-cu12") or ()
    (ptxas,) = (f.locate() for f in files if f.name == "ptxas")
    call = [str(ptxas), "-v", "-arch=sm_90a", str(path), "-o", "/dev/null"]
    return subprocess.run(call, capture_output=True, text=True, check=True).stderr


def _environment(name: str, folder: str) -> dict[str, str]:
    del name, folder
    return targets.environment("h100")


def markdown(results: dict) -> str:
    """The page."""
    head = [
        *("case", "threads", "registers", "spilled", "shared KB"),
        "starts by the host",
        *("XLA's loops", "lax.scan", "temporaries MB", "XLA's loops", "compile s"),
    ]
    lines = [_line(name, record) for name, record in results["rows"].items()]
    about = "Two numbers are those of the forward and of the reverse loop."
    source = apart.source(results)
    return "\n".join([PAGE, about, "", table(head, lines), "", source, ""])


def _line(name, record) -> list[str]:
    if "error" in record:
        return [name, record["error"], *[""] * 9]
    starts, loops = record["starts"], f"{record['temp_bytes_of_loops'] / 1e6:.1f}"
    theirs = [f"{starts[k]:,}" for k in ("scanrnn", "lax_scan")]
    if "refused" in record:
        return [name, record["refused"], *[""] * 4, *theirs, "", loops, ""]

    def both(what, unit=1):
        kernels = {k["name"]: k[what] // unit for k in record["kernels"]}
        return " + ".join(f"{kernels[k]:,}" for k in NAMES.values() if k in kernels)

    return [
        *(name, both("threads"), both("registers"), both("spilled")),
        *(both("shared_bytes", 1024), f"{starts['pallas_gpu']:,}"),
        *(*theirs, f"{record['temp_bytes'] / 1e6:.1f}", loops),
        f"{record['compile_seconds']:.0f}",
    ]


def page() -> apart.Page:
    """The page and its rows."""
    rows = {case.name: {"case": dataclasses.asdict(case)} for case in CASES}
    return apart.Page(MODULE, rows, row, _environment, LIMIT, RESULTS, markdown)


if __name__ == "__main__":
    apart.main(page(), __doc__)
