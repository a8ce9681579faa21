"""A row in a process of its own: compilers read some settings once."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.compiled.workers import ROOT


def record(module: str, number: int, environment, limit: float) -> dict:
    """What `python -m module --row NUMBER --folder FOLDER` prints in its last line.

    Args:
      module: what runs the row.
      number: the number of the row.
      environment: `environment(folder)` are the variables that it needs, given the
        folder that it may write to.
      limit: seconds that it may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", module, "--row", str(number), "--folder", folder]
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


def main(about: str, row, run, results: pathlib.Path, markdown) -> None:
    """Run what the command line of a page of kernels asks for.

    Args:
      about: the description of the command.
      row: `row(number, folder)` is the record of a row, made in this process.
      run: `run(only)` makes all rows that have `only` in their names, and keeps them.
      results: the file that they are kept in. The page lies beside it.
      markdown: the page of such results.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--report", action="store_true", help="from the results alone")
    parser.add_argument("--only", help="rows whose names have this in them")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row is not None:
        print(json.dumps(row(args.row, args.folder)))
        return
    if not args.report:
        run(args.only)
    page = markdown(json.loads(results.read_text()))
    results.with_suffix(".md").write_text(page)
