"""`python -m benchmarks.compiled.kernels`: the length of a step in a TPU's kernel.

The compiler writes the schedule of a kernel as text: a line for each bundle, which
takes one cycle if nothing waits for memory. Each row is compiled in its own process,
which writes that text to a folder. `--report` makes the page from the results alone.
"""

import dataclasses
import functools
import math
import pathlib
import re
import tempfile
from unittest import mock

import jax

from benchmarks.cases import Case
from benchmarks.compiled import apart, programs, schedules, targets
from benchmarks.compiled.kernels_page import BOUNDS, markdown
from benchmarks.compiled.measure import ProgramCase
from benchmarks.compiled.workers import ROOT
from scanrnn import Options, _plans
from scanrnn.executors import pallas_tpu
from scanrnn.executors.kernels import kernel, tiles

RESULTS = ROOT / "benchmarks" / "results" / "kernels.json"
# The layer of Google's translation model, for several batches and sizes.
SWEEP = tuple(("lstm", 256, B, 1024) for B in (8, 16, 32, 128, 256))
SWEEP += tuple(("lstm", 256, 64, H) for H in (128, 256, 512))
PROGRAMS = ("chunks of a gated delta rule",)
# What is also compiled for a TPU with two cores.
ON_TWO_CORES = tuple(size for size in BOUNDS if size[0] == "lstm" and size[2] >= 16) + (
    ("ln_lstm", 1024, 16, 768),
)
LIMIT = 1800  # seconds for a row
MODULE = "benchmarks.compiled.kernels"
# What a kernel takes of the fast memory.
FAST = (
    r"%(?:first_to_last|last_to_first).*used_scoped_memory_configs\":\[\{"
    r".*?\"size\":\"(\d+)\""
)


@functools.cache
def cases() -> dict[str, tuple[str, Case | ProgramCase]]:
    """The machine and the case of each row."""

    def named(machine, sizes):
        found = (
            Case(cell, T, B, H, H, "bfloat16", throughout=True)
            for cell, T, B, H in sizes
        )
        return [(machine, case) for case in found]

    def others(machine):
        return [(machine, ProgramCase(name)) for name in PROGRAMS]

    rows = [*named("v5e", (*BOUNDS, *SWEEP)), *others("v5e")]
    of_two = [*named(targets.V5P, ON_TWO_CORES), *others(targets.V5P)]
    return {case.name: (machine, case) for machine, case in rows} | {
        f"{machine}-{case.name}": (machine, case) for machine, case in of_two
    }


def measure(name: str, folder: str) -> dict:
    """The record of a row, compiled here; its schedules are read from `folder`."""
    machine, case = cases()[name]
    record = _compiled(machine, case, folder)
    if machine == targets.V5P:
        with (
            tempfile.TemporaryDirectory(dir=folder) as aside,
            mock.patch.object(tiles, "cores_of", lambda machine: 1),
        ):
            for path in schedules.paths(folder):
                path.rename(pathlib.Path(aside, path.name))
            # What was lowered for two cores would be found again.
            _plans.forget()
            jax.clear_caches()
            record["on_one_core"] = _compiled(machine, case, folder)["kernels"]
    return record


def _compiled(machine: str, case: Case | ProgramCase, folder: str) -> dict:
    """What the compiler says of a training step."""
    # The plan must ask for the kernels: by default the TPU runs XLA's loops.
    programs._options = lambda machine: Options(
        machine=targets.MACHINES[machine], implementation="pallas_tpu"
    )
    sizes, right = {}, pallas_tpu.lower

    def lower(body, *args):
        new, name = _sizes(body), "reverse" if body.rows.reverse else "forward"
        sizes[name] = max(new, sizes.get(name, new), key=lambda s: s["moved"])
        return right(body, *args)

    fn, args, donate = programs._program(case, "train", "scanrnn", machine)
    with mock.patch.object(pallas_tpu, "lower", lower):
        lowered = jax.jit(fn, donate_argnums=donate).lower(*args)
    begin = programs.processor_seconds()
    compiled = lowered.compile()
    return {
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "compile_seconds": round(programs.processor_seconds() - begin, 1),
        "fast_bytes": max(map(int, re.findall(FAST, compiled.as_text(), re.M))),
        "kernels": [k | sizes[k["name"]] for k in schedules.read(folder)],
    }


def _sizes(body) -> dict:
    """What our own layout of the kernel of a body says of it."""
    found, parts = kernel.layout(body)
    cores = tiles.cores_of(body.machine) if parts > 1 else 1
    forms = (*found.xs, *found.ys)
    rows = sum(math.prod(f.shape) * f.dtype.itemsize for f in forms)
    held = (*found.weights.values(), *found.carry, *found.carry)
    return {
        "steps": found.steps,
        # What each of the cores runs.
        "grid": [parts // cores, body.rows.length // found.steps],
        "moved": parts * rows * body.rows.length,
        "moved_tiles": parts * sum(f.bytes() for f in forms) * body.rows.length,
        "held": sum(math.prod(f.shape) * f.dtype.itemsize for f in held),
    }


def _environment(name: str, folder: str) -> dict[str, str]:
    dump = (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        # To write what other passes make takes minutes.
        "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
    )
    return {**targets.environment(cases()[name][0]), "LIBTPU_INIT_ARGS": dump}


def page() -> apart.Page:
    """The page and its rows."""
    rows = {
        name: {"machine": machine, "case": dataclasses.asdict(case)}
        for name, (machine, case) in cases().items()
    }
    return apart.Page(MODULE, rows, measure, _environment, LIMIT, RESULTS, markdown)


if __name__ == "__main__":
    apart.main(page(), __doc__)
