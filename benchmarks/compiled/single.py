"""One row in the terminal: its numbers, and the instructions of its loops."""

import argparse
import contextlib
import itertools
import os

from benchmarks.cases import MODES, Case
from benchmarks.compiled import summary
from benchmarks.compiled.measure import ProgramCase, Row
from benchmarks.compiled.report import hot_lines
from benchmarks.compiled.targets import ALL, TARGETS
from benchmarks.compiled.workers import Worker
from benchmarks.programs import FILES

# Names of dtypes: the dtype of the case, and whether everything in it has that dtype.
DTYPES = {
    "f32": ("float32", False),
    "bf16": ("bfloat16", False),
    "all-bf16": ("bfloat16", True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that choose a row."""
    parser.add_argument("--machine", default=",".join(TARGETS), help=",".join(ALL))
    parser.add_argument("--cell", help="one row in place of the suite: lstm, gru, ...")
    parser.add_argument("--program", help="or a part of the name of a program")
    parser.add_argument("--size", default="30,32,512", help="T,B,H or T,B,D,H")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--mode", default="train", help=",".join(MODES))
    parser.add_argument("--contender", default="scanrnn,lax_scan")
    parser.add_argument("--hot", action="store_true", help="instructions per loop")
    parser.add_argument("--top", type=int, default=1000, help="so many with --hot")
    parser.add_argument("--text", help="write the program here: PATH.MACHINE.CONTENDER")


def run(args) -> None:
    """Compiles and prints the rows that the arguments choose."""
    for machine in args.machine.split(","):
        with contextlib.closing(Worker(machine)) as worker:
            for case, mode in itertools.product(_cases(args), args.mode.split(",")):
                _row(args, worker, machine, case, mode)


def _cases(args):
    if args.program:
        found = [name for name in FILES if args.program.lower() in name.lower()]
        if not found:
            raise ValueError(
                f"--program {args.program}: expected a part of one of {list(FILES)}"
            )
        return [ProgramCase(name) for name in found]
    size = [int(word) for word in args.size.split(",")]
    T, B, D, H = size if len(size) == 4 else (*size, size[-1])
    dtype, throughout = DTYPES[args.dtype]
    return [Case(args.cell, T, B, D, H, dtype, throughout=throughout)]


def _row(args, worker, machine, case, mode):
    """Prints a case for each contender, and compares the first with the second."""
    case_records = {}
    for contender in args.contender.split(","):
        row = Row(machine, case, mode, contender)
        text = args.text and os.path.abspath(f"{args.text}.{machine}.{contender}")
        record = worker.measure(row, top=args.hot * args.top, text=text)
        print("\n".join(lines(record)), flush=True)
        case_records[contender] = record
    ratios = {
        what: summary.ratio(case_records, what, *list(case_records)[:2])
        for what in ("launches", "cycles", "temp_bytes")
        if len(case_records) > 1
    }
    print(*(f"  {k} {v:.2f}" for k, v in ratios.items() if v is not None), flush=True)


def lines(record: dict) -> list[str]:
    """A record as lines of text."""
    shown = [Row.of(record).name]
    if "error" in record:
        return [*shown, f"  {record['error']}"]
    unpriced = f" ({record['unpriced']} without)" if record["cycles"] else ""
    shown.append(
        f"  launches {record['launches']:,}, cycles {record['cycles']:,}{unpriced},"
        f" temporaries {record['temp_bytes'] / 1e6:.2f} MB; processor seconds:"
        f" {record['lower_seconds']} to lower, {record['compile_seconds']} to compile"
    )
    for loop in record["loops"]:
        shown += [f"  {line}" for line in hot_lines(loop, record["machine"])]
    return shown
