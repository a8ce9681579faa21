"""Compiles all rows for a machine, and keeps each as soon as it is done.

A row that is already in the results file is not compiled again, unless it is asked for
by `afresh`. So a run that was interrupted goes on.
"""

import contextlib
import json
import pathlib

from benchmarks.compiled.run import versions
from benchmarks.compiled.targets import TARGETS
from benchmarks.compiled.workers import Worker
from benchmarks.parallel.rows import Row, rows

MODULE = "benchmarks.parallel.worker"
LIMIT = 1800.0  # seconds for a row


def run(path: pathlib.Path, machine: str, quick: bool, afresh: bool) -> None:
    """Brings the rows of a machine in the results file up to date."""
    found = _kept(path)
    done = {row.key: record for row, record in found}
    wanted = rows(machine, quick)
    todo = [row for row in wanted if afresh or "launches" not in done.get(row.key, {})]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} rows are in the results")
    with contextlib.closing(Worker(machine, LIMIT, MODULE)) as worker:
        for row in todo:
            done[row.key] = worker.measure(row)
            _write(path, list(done.values()))
            print(row.key, done[row.key].get("error", ""), flush=True)


def of(record: dict) -> Row:
    """The row of a record."""
    return Row(**{k: record[k] for k in Row.__dataclass_fields__})


def _kept(path):
    if not path.exists():
        return []
    return [(of(record), record) for record in json.loads(path.read_text())["rows"]]


def _write(path, records):
    """JSON with a line for each row, so that a diff shows which rows changed."""
    found = {of(record).key: record for record in records}
    wanted = [row.key for machine in TARGETS for row in rows(machine)]
    lines = ",\n".join(json.dumps(found[key]) for key in wanted if key in found)
    head = json.dumps(versions())
    path.write_text(f'{{"versions": {head},\n "rows": [\n{lines}\n]}}\n')
