"""Compare contenders on one case; a contender with wrong answers gets no times.

    python -m benchmarks.compare --cell lstm --T 30 --B 32 --H 512 \
        --contenders scanrnn,lax_scan,torch

Contenders are those of `benchmarks.contenders`. `scanrnn:split+hoist+recompute` is the
planner with these passes alone and this residual policy, `accelerate:flax_linen` is
Flax's layer through `scanrnn.accelerate`, and `commit:293fdc4` is the package as it was
at that commit.
"""

import argparse
import statistics

from benchmarks import intervals, machine, measure, steps
from benchmarks.cases import MODES, Case
from benchmarks.race import MIN_ROUNDS, Entry
from benchmarks.suite import Row

YARDSTICKS = ("torch", "torch_lstm", "lax_scan")
STATISTICS = {"median": statistics.median, "min": min}


def main(argv=None) -> None:
    """Runs the race that the command line asks for, and prints its tables."""
    args = _parser().parse_args(argv)
    machine.prepare()
    D = args.D or args.H
    case = Case(args.cell, args.T, args.B, D, args.H, args.dtype, args.S)
    row = Row("compare", case, tuple(args.contenders.split(",")))
    race, (entries,) = measure.enter([row], args.mode.split(","))
    race.run(args.budget, args.rounds)
    rounds = len(race.others)
    peak = machine.gemm_peak(case.dtype)
    print(
        f"{case.name}: {rounds} rounds, GEMM peak {peak:.0f} GFLOP/s, "
        f"others used {race.disturbance:.1f} of {machine.cores()} cores"
    )
    for mode in race.modes:
        print(table(entries, case, mode, peak, args.statistic))


def table(
    entries: measure.Entries, case: Case, mode: str, peak: float, statistic="median"
) -> str:
    """The times of one mode, with their ratios to the yardsticks that ran."""
    ran = {n: e for n, e in entries.items() if isinstance(e, Entry) and e.runs}
    marks = {name: entry for name, entry in ran.items() if name in YARDSTICKS}
    heads = [f"/{name}" for name in marks]
    columns = ["median ms", "+- %", "min ms", *heads, "% peak", "compile s", "temp MB"]
    lines = ["", f"{mode:<34}" + "".join(f"{c:>11}" for c in columns) + "  gate"]
    for name, entry in entries.items():
        if name in ran:
            told = _row(entry, case, mode, marks.values(), peak, statistic)
        else:
            absent = isinstance(entry, str)
            told = entry if absent else f"not timed: gate {entry.verdict}"
        lines.append(f"{name:<34}{told}")
    return "\n".join(lines)


def _row(entry: Entry, case, mode, marks, peak, statistic):
    seconds = STATISTICS[statistic](entry.seconds[mode])
    ratios = [seconds / STATISTICS[statistic](m.seconds[mode]) for m in marks]
    width = intervals.median(entry.seconds[mode]).width
    share = case.flops(mode) / seconds / 1e9 / peak
    cells = [f"{1e3 * f(entry.seconds[mode]):.3f}" for f in STATISTICS.values()]
    cells.insert(1, f"{100 * width:.1f}")
    cells += [f"{ratio:.2f}" for ratio in ratios] + [f"{100 * share:.0f}"]
    compiled = getattr(entry.runner, "compiled", {}).get(mode)
    cells += (
        [f"{compiled.compile_seconds:.2f}", f"{compiled.temp_bytes / 1e6:.2f}"]
        if compiled
        else ["-", "-"]
    )
    return "".join(f"{cell:>11}" for cell in cells) + f"  {entry.verdict}"


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cell", default="lstm", choices=list(steps.CELLS))
    parser.add_argument("--T", type=int, default=30, help="steps")
    parser.add_argument("--B", type=int, default=32, help="batch")
    parser.add_argument("--D", type=int, default=0, help="inputs (default: H)")
    parser.add_argument("--H", type=int, default=512, help="hidden features")
    parser.add_argument("--S", type=int, default=0, help="side of pictures")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    parser.add_argument("--mode", default=",".join(MODES), help="train,forward")
    parser.add_argument("--contenders", default="scanrnn,lax_scan,torch")
    parser.add_argument("--statistic", default="median", choices=list(STATISTICS))
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help="at least")
    parser.add_argument(
        "--budget", type=float, default=20.0, help="most seconds of timing"
    )
    return parser


if __name__ == "__main__":
    main()
