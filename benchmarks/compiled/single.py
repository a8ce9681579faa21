"""One row on the terminal: its numbers, and the instructions of its loops."""

import argparse
import contextlib
import os

from benchmarks.cases import MODES, Case
from benchmarks.compiled.measure import Row
from benchmarks.compiled.report import hot_lines
from benchmarks.compiled.targets import TARGETS
from benchmarks.compiled.workers import Worker

DTYPES = {"f32": "float32", "bf16": "bfloat16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What names a row on the command line."""
    parser.add_argument("--machine", default=",".join(TARGETS), help="h100,v5e")
    parser.add_argument("--cell", help="one row in place of the suite: lstm, gru, ...")
    parser.add_argument("--size", default="30,32,512", help="T,B,H or T,B,D,H")
    parser.add_argument("--dtype", default="bf16", help="f32 or bf16")
    parser.add_argument("--mode", default="train", choices=MODES)
    parser.add_argument("--contender", default="scanrnn,lax_scan")
    parser.add_argument("--hot", action="store_true", help="instructions per loop")
    parser.add_argument("--top", type=int, default=1000, help="so many with --hot")
    parser.add_argument("--text", help="write the program here: PATH.MACHINE.CONTENDER")


def run(args) -> None:
    """Compiles and prints what the arguments name."""
    size = [int(word) for word in args.size.split(",")]
    T, B, D, H = size if len(size) == 4 else (*size, size[-1])
    case = Case(args.cell, T, B, D, H, DTYPES.get(args.dtype, args.dtype))
    for machine in args.machine.split(","):
        with contextlib.closing(Worker(machine)) as worker:
            for contender in args.contender.split(","):
                row = Row(machine, case, args.mode, contender)
                text = args.text and f"{args.text}.{machine}.{contender}"
                record = worker.measure(
                    row, top=args.hot * args.top, text=text and os.path.abspath(text)
                )
                print("\n".join(lines(record)), flush=True)


def lines(record: dict) -> list[str]:
    """A record for people."""
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
