"""`python -m benchmarks.device`: programs in turns on a GPU, in each way to run them.

Processes compile and check all rows at the same time; then each row is timed alone. It
writes `benchmarks/results/device-NAME.json` and its page. `--selfcheck` runs
`scanrnn.selfcheck` of each cell in these processes, and writes `selfcheck.json`.
`--report` makes the page again from the results alone.
"""

import argparse
import collections
import json
import os
import pathlib
import sys
import time

from benchmarks import origin
from benchmarks.device import page, rows, worker
from benchmarks.race import MIN_ROUNDS

ROOT = pathlib.Path(__file__).parents[2]
DTYPES = ("float32", "bfloat16", "float64")


def main(argv: list[str] | None = None) -> int:
    """Runs what the command line asks for."""
    args = _parser().parse_args(argv)
    # Several processes share the memory of the device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if args.report:
        for path in sorted((ROOT / "benchmarks" / "results").glob("device-*.json")):
            page.write(path)
        return 0
    pipes = [worker.started()[1] for _ in range(args.processes)]
    if args.selfcheck:
        return _selfcheck(pipes, args)
    names = [row.name for row in rows.rows()]
    names = [n for n in names if not args.only or any(o in n for o in args.only)]
    ready = _prepared(pipes, names, args.limit)
    about = worker.ask(pipes[0], ("about",), 60)
    results = {"machine": about, **origin.commit(), "rows": []}
    if args.commit:
        results |= {"commit": args.commit, "dirty": False}
    args.out.mkdir(exist_ok=True)
    path = args.out / f"device-{_slug(about.get('device', 'gpu'))}.json"
    for name, pipe in ready.items():
        request = "timed", name, args.budget, args.rounds
        found = worker.ask(pipe, request, 120)
        if "error" in found:
            found = {"name": name} | found
        results["rows"].append(found)
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(page.line(found), flush=True)
    page.write(path)
    for pipe in pipes:
        pipe.send(None)
    return 0


def _prepared(pipes, names, limit):
    """The pipe to the process that has each row ready, in the order of the rows."""
    ready, end = {}, time.monotonic() + limit
    for pipe, name, found in _spread(pipes, [("prepare", n) for n in names], end):
        if isinstance(found, dict) and "error" in found:
            print(f"{name[1]}: {found['error']}", flush=True)
            continue
        ready[name[1]] = pipe
        told = "; ".join(f"{who}: {what}" for who, what in found.items())
        print(f"{limit - end + time.monotonic():.0f} s, {name[1]}: {told}", flush=True)
    return {name: ready[name] for name in names if name in ready}


def _selfcheck(pipes, args) -> int:
    from scanrnn._selfcheck import CELLS

    asked = [
        ("selfcheck", name, dtype, args.ways)
        for name in CELLS
        if not args.only or name in args.only
        for dtype in args.dtypes
    ]
    checks, end = [], time.monotonic() + args.limit
    args.out.mkdir(exist_ok=True)
    for _, request, found in _spread(pipes, asked, end):
        if isinstance(found, dict):
            print(*request, found["error"], flush=True)
            continue
        checks += found
        for c in found:
            if c["right"] is False or (c["error"] or 0) > 1e-4:
                print({k: v for k, v in c.items() if v is not None}, flush=True)
        (args.out / "selfcheck.json").write_text(json.dumps(checks, indent=1) + "\n")
    ran = [c for c in checks if c["right"] is not None]
    wrong = sum(not c["right"] for c in ran)
    print(f"{len(asked)} asked, {len(checks)} checks, {wrong} of {len(ran)} wrong")
    return 0


def _spread(pipes, requests, end):
    """Gives requests to processes that are idle; yields each answer as it comes."""
    waiting = collections.deque(requests)
    busy = {}
    idle = list(pipes)
    while waiting or busy:
        while idle and waiting:
            pipe = idle.pop()
            busy[pipe] = waiting.popleft()
            pipe.send(busy[pipe])
        for pipe in [p for p in busy if p.poll(0.05 / len(pipes))]:
            try:
                _, found = pipe.recv()
                idle.append(pipe)
            except EOFError:
                found = {"error": "its process died"}
            yield pipe, busy.pop(pipe), found
        if time.monotonic() > end:
            print("out of time:", *busy.values(), *waiting, flush=True)
            return


def _slug(name: str) -> str:
    return "-".join(name.lower().split())


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out = ROOT / "benchmarks" / "results"
    parser.add_argument("--selfcheck", action="store_true", help="every cell")
    parser.add_argument("--report", action="store_true", help="from the results alone")
    parser.add_argument("--ways", nargs="*", help="of the checks; all if not given")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES, help="of the checks")
    parser.add_argument("--only", action="append", help="rows with this in their names")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds to compile")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a row")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help="at least")
    parser.add_argument("--commit", help="where there is no repository")
    parser.add_argument("--out", type=pathlib.Path, default=out, help="folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
