"""`python -m benchmarks.compiled`: the suite, or one row of it.

python -m benchmarks.compiled --machine h100 --cell lstm --size 30,32,512 \
    --dtype bf16 --mode train --hot
python -m benchmarks.compiled --machine h100,v5e,cpu --program mamba \
    --mode train,forward
"""

import argparse
import sys

from benchmarks.compiled import report, run, single
from benchmarks.compiled.workers import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "compiled.json"


def main(argv: list[str] | None = None) -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compiled",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--report", action="store_true", help="from the results alone")
    single.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.cell or args.program:
        single.run(args)
        return 0
    if not args.report:
        run.run(RESULTS)
    print(report.write(RESULTS).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
