"""`python -m benchmarks.course`: the short studies of the source documents.

It writes `benchmarks/results/course-MACHINE.*`. `--quick` runs everything at tiny sizes
and writes `.benchmarks/course.*`, which are not committed. `--report` writes the page
again from the numbers that are there.
"""

import argparse
import pathlib
import sys

from benchmarks import machine, origin
from benchmarks.course import biases, clipping, memory, mixed, on_a_gpu, step_times
from benchmarks.measure import QUIET

SECTIONS = {
    "step_times": step_times,
    "biases": biases,
    "on_a_gpu": on_a_gpu,
    "mixed": mixed,
    "memory": memory,
    "clipping": clipping,
}
ABOUT = f"""\
Tables that the forum thread "How to speed up for loop in customized RNN?" and the
course page "RNN computational considerations" ask for, at their sizes. Contenders take
turns in one process for at least 30 rounds; numbers in square brackets are 95 %
intervals of medians. A row whose medians are not known to 3 % is marked as not settled,
and one during which other processes used more than {QUIET} cores as disturbed."""


def page(results: dict) -> str:
    """The whole report, in Markdown."""
    parts = ["# Short studies of the source documents", ABOUT, origin.line(results)]
    for name, found in results["sections"].items():
        parts += [f"## {SECTIONS[name].TITLE}", *SECTIONS[name].report(found)]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> pathlib.Path:
    """Measures what is asked for, and gives the path of the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, two rounds")
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="any of them")
    options = parser.parse_args(arguments)
    path = origin.place("course", options.quick)
    if options.report:
        origin.write_page(path, page)
    else:
        machine.prepare()
        found = {
            name: SECTIONS[name].measure(options.quick)
            for name in options.sections.split(",")
        }
        origin.keep(path, origin.origin() | {"sections": found}, page)
    return path.with_suffix(".md")


if __name__ == "__main__":
    main(sys.argv[1:])
