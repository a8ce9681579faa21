"""One row of the suite as a record of plain numbers, which the results file keeps."""

import dataclasses

from benchmarks import intervals
from benchmarks.compiled.measure import read
from benchmarks.compiled.summary import per_step
from benchmarks.contenders import Absent, find
from benchmarks.race import Entry, Race
from benchmarks.suite import Row

# The most cores that other processes may use while a row is measured.
QUIET = 0.1
# How well a ratio is known that stands in a summary: its interval to either side.
KNOWN = 0.1


def enter(row: Row, modes) -> tuple[Race, dict[str, str]]:
    """The race of a row, and why some contenders are absent, by their names."""
    present, absent = [], {}
    for name in row.contenders:
        try:
            present.append(find(name))
        except Absent as reason:
            absent[name] = str(reason)
    return Race(row.case, present, modes), absent


def record(row: Row, race: Race, absent: dict[str, str], limits: dict) -> dict:
    """Everything that the report needs to know about a row."""
    contenders = {name: {"absent": reason} for name, reason in absent.items()}
    for entry in race.entries:
        contenders[entry.contender.name] = _entry(entry, race, limits)
    return {
        "section": row.section,
        "case": dataclasses.asdict(row.case),
        "disturbance": race.disturbance,
        "settled": race.settled,
        "contenders": {name: contenders[name] for name in row.contenders},
    }


def _entry(entry: Entry, race: Race, limits):
    if entry.verdict is None:
        return {"absent": entry.absent}
    case = entry.contender.computes(race.case)
    about = {"computes": case.name, "gate": entry.verdict._asdict()}
    if not entry.runs:
        return about
    return about | {mode: _times(entry, mode, case, limits) for mode in race.modes}


def _times(entry, mode, case, limits):
    median = entry.median(mode)
    shares = {
        "gemm_share": case.flops(mode) / median / 1e9 / limits[f"gemm_{case.dtype}"],
        "memory_share": case.traffic(mode) / median / 1e9 / limits["memory"],
    }
    return timings(entry, mode) | shares | _operations(entry, mode, case)


def _operations(entry, mode, case):
    """What XLA's runtime starts in each step of the forward and of the reverse loop."""
    compiled = getattr(entry.runner, "compiled", {}).get(mode)
    if not compiled:
        return {}
    loops = read(compiled.call.as_text())["loops"]
    program = {"machine": "cpu", "case": {"T": case.T}, "mode": mode, "loops": loops}
    return {"operations": per_step(program)[:2]}


def timings(entry: Entry, mode: str) -> dict:
    """The times of an entry that ran, and its program's compile time and memory."""
    seconds = entry.seconds[mode]
    estimate = intervals.median(seconds)
    times = {
        "median": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "min": min(seconds),
        "rounds": len(seconds),
        "calls": entry.calls[mode],
        # In the order of the rounds: the interval of a ratio draws rounds as pairs.
        "seconds": [float(f"{time:.4g}") for time in seconds],
    }
    compiled = getattr(entry.runner, "compiled", {}).get(mode)
    if compiled:
        times["compile_seconds"] = compiled.compile_seconds
        times["temp_bytes"] = compiled.temp_bytes
        times["program"] = compiled.program
    return times


def counts(record: dict) -> bool:
    """Whether a row may count in a mean: it settled, and nothing disturbed it.

    Older results have no intervals and do not say whether a row settled. All their rows
    count, and the report says so.
    """
    quiet = record["disturbance"] <= QUIET
    return "settled" not in record or (record["settled"] and quiet)


def mark(record: dict) -> str:
    """The words that say why a row does not count; empty if it counts."""
    marks = {" (not settled)": not record.get("settled", True)}
    marks[" (disturbed)"] = record["disturbance"] > QUIET
    return "".join(word for word, holds in marks.items() if holds)


def same_program(record: dict, mode: str, one: str, other: str) -> bool:
    """Whether two contenders ran the very same instructions."""
    programs = [
        record["contenders"].get(name, {}).get(mode, {}).get("program")
        for name in (one, other)
    ]
    return programs[0] is not None and programs[0] == programs[1]


def ratio(record: dict, mode: str, over: str, under: str, what: str = "median"):
    """`over / under` of a record; None if either was not measured or `under` is 0."""
    pair = [record["contenders"].get(name, {}).get(mode) for name in (over, under)]
    if any(not times or what not in times for times in pair):
        return None
    return pair[0][what] / pair[1][what] if pair[1][what] else None


def is_known(record: dict, mode: str, over: str, under: str) -> bool:
    """Whether a ratio may stand in a summary: nothing disturbed it, and it is known.

    The speed of some machines comes and goes, so that no median is known well. But
    contenders take turns, and what slows one down slows down the other.
    """
    estimate = ratio_interval(record, mode, over, under)
    quiet = record["disturbance"] <= QUIET
    return quiet and estimate is not None and estimate.width <= KNOWN


def ratio_interval(record: dict, mode: str, over: str, under: str):
    """The ratio of two medians with its interval; None if rounds are not known."""
    pair = [record["contenders"].get(name, {}).get(mode) for name in (over, under)]
    if any(not times or "seconds" not in times for times in pair):
        return None
    return intervals.ratio(*(times["seconds"] for times in pair))
