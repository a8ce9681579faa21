"""What the guide finds, and what our numbers say of it."""

from benchmarks import intervals
from benchmarks.tables import table


def ratio(over: dict, under: dict) -> str:
    """The ratio of two times of the same race, with its 95 % interval."""
    value, low, high = intervals.ratio(over["seconds"], under["seconds"])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def section(results: dict) -> str:
    """A table of the guide's findings; empty if a size of them was not timed."""
    rows = {tuple(row["size"]): row for row in results["products"]["rows"]}
    chunks = results["chunks"]
    if not all("forward" in row for row in (*rows.values(), *chunks["rows"])):
        return ""
    _, batch, steps, even = (
        [rows[tuple(size)] for size in sizes]
        for _, _, sizes in results["products"]["sweeps"]
    )
    lines = [
        ("A larger batch takes less than its share of the time", _growth(batch)),
        ("More steps gain less than a larger batch", _growth(steps)),
        (
            "Weight gradients depend on batch times steps alone",
            _extremes(even, "weights", "weight gradient"),
        ),
        (
            "A small batch is slow even with many steps",
            _extremes(even, "forward", "forward pass"),
        ),
        ("The whole sequence at once is often not the best", whole(chunks)),
    ]
    return f"## What the guide finds\n\n{table(['the guide', 'here'], lines)}"


def _growth(rows):
    """The forward times of the first and last two sizes of a sweep."""
    told = []
    for before, after in [rows[:2], rows[-2:]][len(rows) < 3 :]:
        times = ratio(after["forward"], before["forward"])
        work = after["forward"]["flops"] / before["forward"]["flops"]
        told.append(
            f"{_name(before)} to {_name(after)}: {work:g} times the work, {times} times"
            " the time"
        )
    return "; ".join(told)


def _extremes(rows, phase, words):
    """The longest time over the shortest, at equal work."""
    rows = sorted(rows, key=lambda row: row[phase]["median"])
    least, most = rows[0], rows[-1]
    times = ratio(most[phase], least[phase])
    return f"{words}: {_name(most)} takes {times} times as long as {_name(least)}"


def whole(chunks):
    """What the whole sequence at once takes, relative to the fastest chunk."""
    told = []
    for mode in ("forward", "train"):
        best = min(chunks["rows"], key=lambda row: row[mode]["median"])
        whole = next(row for row in chunks["rows"] if row["F"] == str(chunks["S"]))
        if best is whole:
            told.append(f"{mode}: here it is the fastest")
            continue
        times = ratio(whole[mode], best[mode])
        told.append(f"{mode}: {times} times the time of F={best['F']}")
    return "; ".join(told)


def _name(row):
    S, B, _ = row["size"]
    return f"S={S}, B={B}"
