"""A process that compiles and checks rows, and then times them one by one."""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import time
import traceback

from benchmarks.cases import MODES

# Seconds of repeated calls in a turn.
SLOT = 0.004
# Of the checks: a program of a kernel has room for the matrices of most cells.
SIZES = 16, 8, 64


def serve(pipe) -> None:
    """Answers requests `(name of a function here, arguments)` until it gets None."""
    known = {}
    while (request := pipe.recv()) is not None:
        name, *args = request
        try:
            answer = globals()[name](known, *args)
        # Whatever fails on a device is what to report.
        except Exception as error:
            answer = {"error": _words(error)}
        pipe.send((request, answer))


def ask(pipe, request, limit: float):
    """The answer to a request; an error if it takes more than `limit` seconds."""
    end = time.monotonic() + limit
    try:
        pipe.send(request)
        while pipe.poll(max(0.0, end - time.monotonic())):
            asked, answer = pipe.recv()
            if asked == request:
                return answer
    except (EOFError, OSError):
        return {"error": "its process died"}
    return {"error": f"over {limit:g} s"}


def started():
    """A process that serves, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    return process, ours


def prepare(known, name: str) -> dict:
    """Compiles and checks all contenders of a row; what there is to tell of each."""
    from benchmarks.device import rows

    row = next((row for row in rows.rows() if row.name == name), None)
    if row is None:
        raise ValueError(f"no row {name!r}")
    problems, check = row.enter()
    found = {who: one for who, one in problems.items() if isinstance(one, str)}
    able = {who: one for who, one in problems.items() if who not in found}
    made = {}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = {
            who: pool.submit(c.setup, problem) for who, (problem, c) in able.items()
        }
        for who, (problem, contender) in able.items():
            try:
                runner = futures[who].result()
                made[who] = problem, contender, runner, check(problem, runner)
            except Exception as error:
                found[who] = _words(error)
    known[name] = made, found
    told = {who: str(verdict) for who, (*_, verdict) in made.items()}
    return {**told, **found}


def timed(known, name: str, budget: float, least: int) -> dict:
    """The record of a row that was prepared."""
    from benchmarks import measure
    from benchmarks.race import Race

    made, absent = known.pop(name)
    runners = {id(c): (runner, verdict) for _, c, runner, verdict in made.values()}
    entered = [(problem, contender) for problem, contender, *_ in made.values()]
    race = Race(entered, MODES, lambda _, c: runners[id(c)], SLOT)
    race.run(budget, least)
    record = {
        "name": name,
        "disturbance": race.disturbance,
        "settled": race.settled,
        "contenders": {who: {"absent": why} for who, why in absent.items()},
    }
    for who, entry in zip(made, race.entries, strict=True):
        times = {mode: measure.timings(entry, mode) for mode in MODES if entry.runs}
        record["contenders"][who] = {"gate": entry.verdict._asdict()} | times
    return record


def selfcheck(known, name: str, dtype: str, ways: list[str] | None) -> list[dict]:
    """What `scanrnn.selfcheck` finds of a cell; products of float32 are exact."""
    import jax

    import scanrnn

    wide = jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()
    exact = jax.default_matmul_precision("highest")
    with wide, exact if dtype != "bfloat16" else contextlib.nullcontext():
        found = scanrnn.selfcheck(
            [name], dtypes=[dtype], implementations=ways, sizes=SIZES, runs=0
        )
    return [dataclasses.asdict(check) for check in found.checks]


def about(known) -> dict:
    """The device and the versions."""
    import jax

    from benchmarks import machine

    device = jax.devices()[0]
    return machine.describe() | {
        "device": device.device_kind,
        "platform": device.platform,
        "gemm_float32": machine.gemm_peak("float32", 8192),
        "gemm_bfloat16": machine.gemm_peak("bfloat16", 8192),
        "memory": machine.bandwidth(2048),
    }


def _words(error: Exception) -> str:
    traceback.print_exception(error)
    line = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {line}"
