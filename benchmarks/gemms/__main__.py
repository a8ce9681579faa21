"""`python -m benchmarks.gemms`: NVIDIA's guide to recurrent layers, for our plans.

It times the products on this CPU and writes `benchmarks/results/gemms-MACHINE.*`.
`--quick` runs tiny sizes for two rounds and writes `.benchmarks/gemms-quick.*`.
`--report` makes the page again from the results alone.
"""

import argparse
import datetime
import json
import pathlib
import sys

from benchmarks import machine
from benchmarks.compiled.workers import ROOT
from benchmarks.gemms import costs, page, sweeps
from benchmarks.race import MIN_ROUNDS


def main(argv: list[str] | None = None, folder: pathlib.Path | None = None) -> int:
    """Runs what the command line asks for.

    Args:
      argv: the command line; None takes that of the process.
      folder: where results go in place of their usual folders.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gemms")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, two rounds")
    parser.add_argument("--report", action="store_true", help="from the results alone")
    parser.add_argument(
        "--budget", type=float, default=150.0, help="most seconds of each of two races"
    )
    args = parser.parse_args(argv)
    name = "gemms-quick" if args.quick else f"gemms-{machine.kind()}"
    usual = ROOT / (".benchmarks" if args.quick else "benchmarks/results")
    path = (folder or usual) / f"{name}.json"
    if not args.report:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(measure(args.quick, args.budget), indent=1) + "\n")
    print(page.write(path).read_text())
    return 0


def measure(quick: bool, budget: float) -> dict:
    """Times everything; the content of the results file."""
    machine.prepare()
    chosen = sweeps.QUICK_SWEEPS if quick else sweeps.SWEEPS
    layer = sweeps.QUICK_LAYER if quick else sweeps.LAYER
    budget, least = (0.0, 2) if quick else (budget, MIN_ROUNDS)
    begun = datetime.datetime.now(datetime.UTC)
    found = {
        "date": begun.date().isoformat(),
        "commit": costs.commit(),
        "machine": machine.describe(),
        "peak": machine.gemm_peak("float32", n=64 if quick else 2048),
        "products": sweeps.run(chosen, budget, least),
        "chunks": sweeps.run_chunks(layer, budget, least),
    }
    taken = datetime.datetime.now(datetime.UTC) - begun
    return found | {"minutes": round(taken.total_seconds() / 60, 1)}


if __name__ == "__main__":
    sys.exit(main())
