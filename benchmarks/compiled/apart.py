"""A row in a process of its own: compilers read some settings once.

A page of such rows is of one commit. A run goes on with the rows that the results file
has of the same commit, and drops all others.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks import origin
from benchmarks.compiled.run import versions
from benchmarks.compiled.workers import ROOT


class Page(NamedTuple):
    """A page of rows that are compiled apart.

    Attributes:
      module: the module that has the page, as `python -m` names it.
      rows: what the record of a row says of its case, by the name of the row.
      measure: `measure(name, folder)` is the rest of the record, made in this process.
      environment: `environment(name, folder)` are the variables that a row needs, given
        the folder that it may write to.
      limit: seconds that a row may take.
      results: the file of all records. The page lies beside it.
      markdown: the page of such results.
    """

    module: str
    rows: Mapping[str, dict]
    measure: Callable[[str, str], dict]
    environment: Callable[[str, str], dict[str, str]]
    limit: float
    results: pathlib.Path
    markdown: Callable[[dict], str]


def main(page: Page, about: str) -> None:
    """Do what the command line of a page asks for; `about` describes the command."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--report", action="store_true", help="from the results alone")
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row is not None:
        print(json.dumps(page.measure(args.row, args.folder)))
        return
    if not args.report:
        run(page, args.only)
    text = page.markdown(json.loads(page.results.read_text()))
    page.results.with_suffix(".md").write_text(text)


def run(page: Page, only: str = "") -> None:
    """Compile the rows whose names have `only` in them, and keep each at once."""
    about = origin.commit() | {"versions": versions()}
    done = kept(page.results, about) or {}
    for name, case in page.rows.items():
        if only not in name or (name in done and "error" not in done[name]):
            continue
        variables = functools.partial(page.environment, name)
        done[name] = case | record(page.module, name, variables, page.limit)
        rows = {row: done[row] for row in page.rows if row in done}
        page.results.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
        print(name, done[name].get("error", "compiled"), flush=True)


def kept(results: pathlib.Path, about: dict) -> Any:
    """The rows of a results file of the same commit, without local changes, or None."""
    found = json.loads(results.read_text()) if results.exists() else {}
    same = all(found.get(k) == about[k] for k in ("commit", "dirty", "versions"))
    return found["rows"] if same and not about["dirty"] else None


def source(results: dict) -> str:
    """The line of a page that says where its numbers come from."""
    installed = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    return f"Versions: {installed}. {origin.of_commit(results)}"


def record(module: str, row: int | str, environment, limit: float) -> dict:
    """What `python -m module --row ROW --folder FOLDER` prints in its last line.

    Args:
      module: what runs the row.
      row: the name of the row, or its number.
      environment: `environment(folder)` are the variables that it needs, given the
        folder that it may write to.
      limit: seconds that it may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", module, "--row", str(row), "--folder", folder]
        try:
            done = subprocess.run(
                call, cwd=ROOT, env=os.environ | environment(folder),
                capture_output=True, text=True, timeout=limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"over {limit:.0f} s"}
    lines = done.stdout.strip().splitlines() or [""]
    if done.returncode or not lines[-1].startswith("{"):
        words = done.stderr.strip().splitlines() or ["without a word"]
        named = [w for w in words if "Error" in w] or words
        return {"error": named[-1][:300]}
    return json.loads(lines[-1])
