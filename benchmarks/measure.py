"""One row of the suite as a record of plain numbers: what the results file keeps."""

import dataclasses

from benchmarks.contenders import Absent, find
from benchmarks.race import Entry, Race
from benchmarks.suite import Row

# A row above this multiple of lax.scan's time is measured three times as long.
DOUBT = 1.03


def enter(row: Row, modes) -> tuple[Race, dict[str, str]]:
    """The race of a row, and those who cannot start because they are not installed."""
    present, absent = [], {}
    for name in row.contenders:
        try:
            present.append(find(name))
        except Absent as reason:
            absent[name] = str(reason)
    return Race(row.case, present, modes), absent


def record(row: Row, race: Race, absent: dict[str, str], limits: dict) -> dict:
    """Everything that a report needs to know about a row."""
    contenders = {name: {"absent": reason} for name, reason in absent.items()}
    for entry in race.entries:
        contenders[entry.contender.name] = _entry(entry, race, limits)
    return {
        "section": row.section,
        "case": dataclasses.asdict(row.case),
        "disturbance": race.disturbance,
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
    return timings(entry, mode) | shares


def timings(entry: Entry, mode: str) -> dict:
    """The times of an entry that ran, and what its program took to compile."""
    times = {
        "median": entry.median(mode),
        "min": min(entry.seconds[mode]),
        "rounds": len(entry.seconds[mode]),
        "calls": entry.calls[mode],
    }
    compiled = getattr(entry.runner, "compiled", {}).get(mode)
    if compiled:
        times["compile_seconds"] = compiled.compile_seconds
        times["temp_bytes"] = compiled.temp_bytes
        times["program"] = compiled.program
    return times


def is_doubtful(race: Race, ours="scanrnn", theirs="lax_scan") -> bool:
    """Whether a row says that a plan is slower than what it plans: none should be."""
    entries = {entry.contender.name: entry for entry in race.running}
    if not {ours, theirs} <= entries.keys():
        return False
    ours, theirs = entries[ours], entries[theirs]
    return any(ours.median(m) > DOUBT * theirs.median(m) for m in race.modes)


def same_program(record: dict, mode: str, one: str, other: str) -> bool:
    """Whether two contenders ran the very same instructions."""
    programs = [
        record["contenders"].get(name, {}).get(mode, {}).get("program")
        for name in (one, other)
    ]
    return programs[0] is not None and programs[0] == programs[1]


def ratio(record: dict, mode: str, over: str, under: str, what: str = "median"):
    """`over / under` of a record, or None where either was not measured."""
    pair = [record["contenders"].get(name, {}).get(mode) for name in (over, under)]
    if any(not times or what not in times for times in pair):
        return None
    return pair[0][what] / pair[1][what] if pair[1][what] else None
