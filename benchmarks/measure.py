"""One row of the suite as a record of plain numbers, which the results file keeps."""

import dataclasses
from collections.abc import Sequence

from benchmarks import intervals, suite
from benchmarks.compiled.measure import read
from benchmarks.compiled.summary import per_step
from benchmarks.contenders import Absent, find
from benchmarks.race import Entry, Race
from benchmarks.suite import Row

# The contenders of a row by name: what ran, or why there is none.
Entries = dict[str, Entry | str]

# The most cores that other processes may use while a row is measured.
QUIET = 0.1
# How well a ratio is known that stands in a summary: its interval to either side.
KNOWN = 0.1


def enter(rows: Sequence[Row], modes) -> tuple[Race, list[Entries]]:
    """The race of rows, in which each program runs once, and the entries of each row.

    Rows share a program if they have a contender that computes the same case in the
    same way: torch's LSTM is the yardstick of several cells.
    """
    programs: dict[tuple, tuple] = {}
    keys = [
        {name: _add(name, row.case, programs) for name in row.contenders}
        for row in rows
    ]
    race = Race(programs.values(), modes)
    entries = dict(zip(programs, race.entries, strict=True))
    return race, [
        {name: entries.get(key, key) for name, key in row.items()} for row in keys
    ]


def _add(name, case, programs):
    """Adds what a contender runs and gives its key, or says why it runs nothing."""
    try:
        contender = find(name)
    except Absent as reason:
        return str(reason)
    if reason := contender.supports(case):
        return reason
    computed = contender.computes(case)
    key = contender.runs_as or contender.name, computed
    programs.setdefault(key, (computed, contender))
    return key


def record(row: Row, race: Race, entries: Entries, limits: dict) -> dict:
    """Everything that the report needs to know about a row."""
    running = [e for e in entries.values() if isinstance(e, Entry) and e.runs]
    return {
        "section": row.section,
        "case": dataclasses.asdict(row.case),
        "disturbance": race.disturbance,
        "settled": all(entry.settled for entry in running),
        "contenders": {name: _entry(entry, limits) for name, entry in entries.items()},
    }


def _entry(entry: Entry | str, limits):
    if isinstance(entry, str):
        return {"absent": entry}
    about = {"computes": entry.case.name, "gate": entry.verdict._asdict()}
    return about | {mode: _times(entry, mode, limits) for mode in entry.seconds}


def _times(entry, mode, limits):
    case, median = entry.case, entry.median(mode)
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
    """Whether a row may count in a mean: it settled, and nothing disturbed it."""
    return record.get("settled", False) and record["disturbance"] <= QUIET


def mark(record: dict) -> str:
    """The words that say why a row does not count; empty if it counts."""
    marks = {
        " (not settled)": not record["settled"],
        " (disturbed)": record["disturbance"] > QUIET,
    }
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
    contenders take turns, and what slows one down slows down the other. If the rounds
    of a row were not kept, it must have settled.
    """
    estimate = ratio_interval(record, mode, over, under)
    if estimate is None:
        return counts(record) and ratio(record, mode, over, under) is not None
    return record["disturbance"] <= QUIET and estimate.width <= KNOWN


def ratio_interval(record: dict, mode: str, over: str, under: str):
    """The ratio of two medians with its interval; None if rounds are not known."""
    pair = _rounds(record, mode, over, under)
    return intervals.ratio(*pair) if pair else None


def mean_interval(records: Sequence[dict], mode: str, over: str, under: str):
    """The geometric mean of ratios with its interval; None if rounds are not known."""
    pairs = [_rounds(record, mode, over, under) for record in records]
    if not all(pairs):
        return None
    return intervals.geometric_mean(pairs, list(map(race_of, records)))


def race_of(record: dict) -> tuple:
    """What the rows of one race share: the sizes, for a row of the suite."""
    section, case = record["section"], record["case"]
    if section in suite.SECTIONS:
        return tuple(case.get(name) for name in ("T", "B", "S", "D", "H"))
    return section, *case.values()


def _rounds(record, mode, over, under):
    """The times of all rounds of both; None if they are not known."""
    pair = [record["contenders"].get(name, {}).get(mode) for name in (over, under)]
    if any(not times or "seconds" not in times for times in pair):
        return None
    return tuple(times["seconds"] for times in pair)
