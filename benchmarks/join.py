"""Joins the results of parts of the suite, and writes their report.

The whole suite needs hours of a quiet machine. Its parts may run one after the other:
`python -m benchmarks -k "test_speed and lengths"` writes `.benchmarks/partial.json`.

    python -m benchmarks.join benchmarks/results/MACHINE.json PART.json PART.json
"""

import argparse
import json
import pathlib
from collections.abc import Sequence

from benchmarks import report, suite
from benchmarks.measure import race_of

# Sections in the order of a report.
_ORDER = ["precision", "programs", *suite.SECTIONS]


def join(parts: Sequence[dict]) -> dict:
    """The results of all parts, in one.

    Peaks of the machine are those that the first part has measured.

    Raises:
      ValueError: if the parts are of several machines, versions or commits, if there
        were local changes, or if two parts have programs of one size. Such programs are
        compared with each other, and must run in turns.
    """
    whole, seen = parts[0], set()
    for part in parts:
        if part["commit_info"]["dirty"]:
            raise ValueError("parts: a part is of a commit with local changes")
        if _origin(part) != _origin(whole):
            raise ValueError(
                "parts: these are of several machines, versions or commits, want one: "
                f"{_origin(whole)} and {_origin(part)}"
            )
        found = {race_of(row) for row in part["rows"]}
        if both := seen & found:
            raise ValueError(
                f"parts: two of them have the sizes {sorted(map(str, both))}; "
                "programs of one size are compared, so they run together"
            )
        seen |= found
    rows = [row for part in parts for row in part["rows"]]
    rows.sort(key=lambda row: _ORDER.index(row["section"]))
    benchmarks = [one for part in parts for one in part["benchmarks"]]
    return whole | {"rows": rows, "benchmarks": benchmarks}


def _origin(part) -> dict:
    machine = {k: v for k, v in part["machine_info"].items() if k != "limits"}
    return machine | {"commit": part["commit_info"]["id"]}


def main(argv: list[str] | None = None) -> None:
    """Joins the parts that the command line names, and writes the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.join")
    parser.add_argument("results", type=pathlib.Path, help="file to write (JSON)")
    parser.add_argument("parts", nargs="+", type=pathlib.Path, help="results (JSON)")
    args = parser.parse_args(argv)
    parts = [json.loads(path.read_text()) for path in args.parts]
    args.results.write_text(json.dumps(join(parts), indent=1))
    print(report.write(args.results))


if __name__ == "__main__":
    main()
