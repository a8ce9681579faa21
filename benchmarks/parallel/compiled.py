"""Compiles all rows for a machine, and keeps each as soon as it is done.

A row of the same commit that is already in the results file is not compiled again. So a
run that was interrupted goes on, and all rows are of one commit.
"""

import contextlib
import json
import pathlib

from benchmarks import origin
from benchmarks.compiled import apart
from benchmarks.compiled.run import versions
from benchmarks.compiled.targets import TARGETS
from benchmarks.compiled.workers import Worker
from benchmarks.parallel.rows import Row, rows

MODULE = "benchmarks.parallel.worker"
LIMIT = 1800.0  # seconds for a row


def run(path: pathlib.Path, machine: str, quick: bool) -> None:
    """Brings the rows of a machine in the results file up to date."""
    about = origin.commit() | {"versions": versions()}
    done = {of(record).key: record for record in apart.kept(path, about) or ()}
    wanted = rows(machine, quick)
    todo = [row for row in wanted if "launches" not in done.get(row.key, {})]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} rows are in the results")
    with contextlib.closing(Worker(machine, LIMIT, MODULE)) as worker:
        for row in todo:
            done[row.key] = worker.measure(row)
            _write(path, about, done)
            print(row.key, done[row.key].get("error", ""), flush=True)


def of(record: dict) -> Row:
    """The row of a record."""
    return Row(**{k: record[k] for k in Row.__dataclass_fields__})


def _write(path, about, done):
    """JSON with a line for each row, so that a diff shows which rows changed."""
    wanted = [row.key for machine in TARGETS for row in rows(machine)]
    lines = ",\n".join(json.dumps(done[key]) for key in wanted if key in done)
    path.write_text(f'{json.dumps(about)[:-1]},\n "rows": [\n{lines}\n]}}\n')
