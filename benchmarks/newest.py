"""What the planner gains with the JAX of this Python, without torch beside it.

The suite runs with Python 3.11, for which torch is a small download. JAX 0.11 and newer
need a newer Python. `python -m benchmarks.newest` runs the stock cells and the cells
with norms there, in about 20 minutes. It writes `benchmarks/results/newest-MACHINE.*`.
"""

import itertools
import pathlib
import sys

from benchmarks import beside, machine, report
from benchmarks.__main__ import run
from benchmarks.cases import MODES
from benchmarks.tables import table

RESULTS = pathlib.Path(__file__).parent / "results"
CHOSEN = "grid- or custom-"
# What is compared: its name, the section, who is beside us.
PAIRS = (
    ("stock cells", "grid", "lax_scan", "`lax.scan`"),
    ("cells with norms and the like", "custom", "lax_scan", "`lax.scan`"),
    *(("LSTM", "grid", peer, words) for peer, words in beside.LAYERS.items()),
)
HEADS = ("time of", "", "divided by that of", *beside.COLUMNS)


def text(path: pathlib.Path) -> str:
    """Where and when the page was made, and a table of its ratios."""
    results, records = report.load(path)
    lines = []
    for mode, (name, section, peer, words) in itertools.product(MODES, PAIRS):
        cells = beside.in_short(records, section, mode, "scanrnn", peer)
        if cells:
            lines.append([name, mode, words, *cells])
    return "\n\n".join([beside.where(results, records), table(HEADS, lines)])


def main(arguments: list[str]) -> int:
    """Runs these rows, and writes their page; gives pytest's status."""
    path = RESULTS / f"newest-{machine.kind()}.json"
    return run(path, ["-k", CHOSEN, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
