"""Compiles the suite, and writes every row to the results file as soon as it is done.

A row that is already in the results file, from the same sources and compilers, is not
compiled again. So a run that was interrupted goes on, and after a change of the package
only the rows of scanrnn are compiled.
"""

import concurrent.futures
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import queue
import threading

from benchmarks import origin
from benchmarks.compiled import suite
from benchmarks.compiled.measure import ProgramCase, Row
from benchmarks.compiled.targets import ALL, TARGETS
from benchmarks.compiled.workers import ROOT, Worker
from benchmarks.programs import FILES

# The number of instructions of each loop that are kept, of our programs in bfloat16.
# On an H100 these are all instructions: they are launches, and there are few.
TOP = {"h100": 48, "v5e": 8}
# The files that numbers depend on, besides the package and the compilers.
MEASURING = (
    "benchmarks/steps.py",
    "benchmarks/contenders/_base.py",
    "benchmarks/contenders/flax_nnx.py",
    "benchmarks/contenders/lax_scan.py",
    *(
        f"benchmarks/compiled/{name}.py"
        for name in ("costs", "hlo", "loops", "measure", "programs", "targets")
    ),
)


def run(path: pathlib.Path, say=print) -> dict:
    """Brings the results file up to date, and gives its content."""
    wanted = suite.rows()
    old = _by_name(json.loads(path.read_text())["rows"]) if path.exists() else {}
    done = {row.name: old[row.name] for row in wanted if _is_fresh(row, old)}
    todo = [row for row in wanted if row.name not in done]
    say(f"{len(done)} of {len(wanted)} rows are up to date")
    about, lock = _about(), threading.Lock()

    def keep(row, record):
        with lock:
            done[row.name] = record | {"source": _source(row)}
            _write(path, about, [done[r.name] for r in wanted if r.name in done])
            say(f"{len(done)}/{len(wanted)} {row.name} {record.get('error', '')}")

    for machine in TARGETS:
        _compile(machine, [row for row in todo if row.machine == machine], keep)
    return _write(path, about, [done[row.name] for row in wanted])


def _compile(machine, rows, keep):
    """Compiles as many rows at once as there are processors, each by an idle worker."""
    workers = [Worker(machine) for _ in os.sched_getaffinity(0)]
    idle = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def one(row):
        worker = idle.get()
        keep(row, worker.measure(row, top=_top(row)))
        idle.put(worker)

    try:
        with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(one, rows))
    finally:
        for worker in workers:
            worker.close()


def _top(row):
    is_wanted = (row.contender, row.case.dtype) == (suite.OURS, "bfloat16")
    return TOP[row.machine] if is_wanted else 0


def _source(row):
    """A hash of everything that the numbers of a row depend on."""
    if not isinstance(row.case, ProgramCase):
        return source(row.contender)
    file = ROOT / "benchmarks" / "programs" / f"{FILES[row.case.program]}.py"
    return hashlib.sha256(
        source(row.contender).encode() + file.read_bytes()
    ).hexdigest()[:16]


@functools.cache
def source(contender: str) -> str:
    """A hash of everything that the numbers of a contender depend on."""
    files = [ROOT / name for name in MEASURING]
    if contender == suite.OURS:
        files += sorted((ROOT / "scanrnn").rglob("*.py"))
    digest = hashlib.sha256(json.dumps(versions()).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """The versions of Python, of the compilers, and of the libraries that use them."""
    names = ["jax", "jaxlib", "flax"]
    names += [name for target in TARGETS.values() for name in target.packages]
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def missing(machine: str) -> list[str]:
    """The packages that a machine's compiler needs and that are not installed."""
    found = versions()
    return [name for name in ALL[machine].packages if found[name] == "absent"]


def _by_name(records):
    return {Row.of(record).name: record for record in records}


def _is_fresh(row, old):
    record = old.get(row.name, {})
    return "error" not in record and record.get("source") == _source(row)


def _about():
    return origin.commit() | {"versions": versions()}


def _write(path, about, records):
    results = about | {"rows": records}
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".json.tmp")
    partial.write_text(_text(results))
    partial.replace(path)
    return results


def _text(results):
    """JSON with a line for each row, so that a diff shows which rows changed."""
    about = json.dumps({k: v for k, v in results.items() if k != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row) for row in results["rows"])
    return f'{about[:-2]},\n "rows": [\n{rows}\n]}}\n'
