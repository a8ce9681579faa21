"""`python -m benchmarks.parallel`: affine loops, run in parallel over time.

python -m benchmarks.parallel compiled --machine h100   # or v5e; no device is needed
python -m benchmarks.parallel timed                     # on this CPU
python -m benchmarks.parallel report                    # the pages, from the results

With `--quick`, only the sizes of the bound on launches. `compiled` runs with the
compilers of `make compiled`. It keeps rows of the same commit that are there.
"""

import argparse
import pathlib

import jax

from benchmarks import machine
from benchmarks.compiled.targets import TARGETS
from benchmarks.parallel import compiled, report, timed

FOLDER = pathlib.Path(__file__).parents[1] / "results"


def main() -> None:
    """Runs what the command line asks for, and writes the pages."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("compiled", "timed", "report"))
    parser.add_argument("--machine", choices=TARGETS, default="h100")
    parser.add_argument("--quick", action="store_true", help="few sizes")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for a row")
    args = parser.parse_args()
    if args.what == "compiled":
        path = FOLDER / "parallel.json"
        compiled.run(path, args.machine, args.quick)
    elif args.what == "timed":
        timed.run(FOLDER / f"parallel-{machine.kind()}.json", args.quick, args.budget)
    report.write(FOLDER)


if __name__ == "__main__":
    with jax.enable_x64(False):
        main()
