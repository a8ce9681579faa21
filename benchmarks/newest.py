"""What the planner gains with the JAX of this Python, without torch beside it.

The suite runs with Python 3.11, for which torch is a small download. JAX 0.11 and newer
need a newer Python. `python -m benchmarks.newest` runs the stock cells, the cells with
norms, and other people's programs there, in about 25 minutes. It writes
`benchmarks/results/newest-MACHINE.*`.
"""

import itertools
import pathlib
import sys

from benchmarks import beside, claims, machine, report
from benchmarks.__main__ import run
from benchmarks.cases import MODES
from benchmarks.programs import ORIGINAL, OURS
from benchmarks.tables import table

RESULTS = pathlib.Path(__file__).parent / "results"
CHOSEN = "test_programs or grid- or custom-"
# What is compared: its name, the section, who is beside whom.
PAIRS = (
    ("stock cells", "grid", "scanrnn", "lax_scan"),
    ("cells with norms and the like", "custom", "scanrnn", "lax_scan"),
    ("other people's programs", "programs", OURS, ORIGINAL),
)
HEADS = ("time of", "", "rows", "mean", "best", "worst")


def text(path: pathlib.Path) -> str:
    """Where and when the page was made, and a table of its ratios to `lax.scan`."""
    results, records = report.load(path)
    lines = [
        [name, mode, *beside.in_short(records, section, mode, *pair)]
        for mode, (name, section, *pair) in itertools.product(MODES, PAIRS)
    ]
    slower = f"{claims.SLOWER} {claims.slower(records)}."
    return "\n\n".join([beside.where(results, records), table(HEADS, lines), slower])


def main(arguments: list[str]) -> int:
    """Runs these rows, and writes their page; gives pytest's status."""
    path = RESULTS / f"newest-{machine.kind()}.json"
    return run(path, ["-k", CHOSEN, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
