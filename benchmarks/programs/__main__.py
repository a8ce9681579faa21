"""Programs on this CPU, as they are and accelerated: time, temporaries, compile time.

python -m benchmarks.programs mamba
"""

import argparse

import jax

from benchmarks import machine
from benchmarks.contenders import Absent
from benchmarks.programs import FILES
from benchmarks.programs.measure import enter, record
from benchmarks.programs.report import section


def main() -> None:
    """Measures and prints the programs whose names contain the given words."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs")
    parser.add_argument("name", help="a part of the names of programs")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each")
    args = parser.parse_args()
    machine.prepare()
    for name in FILES:
        if args.name.lower() in name.lower():
            print(*section([_measured(name, args.budget)])[2:], sep="\n\n", flush=True)


def _measured(name, budget):
    race = enter(name)
    if not isinstance(race, Absent):
        race.run(budget)
    return record(name, race)


if __name__ == "__main__":
    with jax.enable_x64(False):
        main()
