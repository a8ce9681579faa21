"""`python -m benchmarks`: the suite, its results file and its report.

Arguments go to pytest: `-m quick`, `-k "grid and lstm"`, `--budget 10`. A run of the
whole suite writes `benchmarks/results/MACHINE.*`. This file is committed: it is of one
machine, one commit and one run. A run of some rows (`-k` or `-m`) writes
`.benchmarks/partial.*`, which is not committed.
"""

import pathlib
import sys

import pytest

from benchmarks import machine, report

HERE = pathlib.Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Runs pytest over the benchmarks, writes the report, and gives pytest's status."""
    whole = HERE / "results" / f"{machine.kind()}.json"
    selects = any(argument.startswith(("-k", "-m")) for argument in arguments)
    results = HERE.parent / ".benchmarks" / "partial.json" if selects else whole
    return run(results, arguments)


def run(results: pathlib.Path, arguments: list[str]) -> int:
    """Like `main`, with the path of the results file."""
    results.parent.mkdir(exist_ok=True)
    code = pytest.main(
        [
            str(HERE),
            "-q",
            "--benchmark-only",
            "--benchmark-columns=rounds",
            f"--benchmark-json={results}",
            *arguments,
        ]
    )
    if results.exists() and results.stat().st_size:
        print(report.write(results).read_text())
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
