"""Sentences of `docs/benchmarks.md` about all timed machines, of the results alone."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.aims import geometric_mean
from benchmarks.beside import machine
from benchmarks.cases import MODES
from benchmarks.measure import is_known, ratio, ratio_interval
from benchmarks.programs import ORIGINAL, OURS

SLOWER = (
    "Programs that are slower with `accelerate`, by more than the interval of their"
    " ratio (only ratios known to 10 %):"
)
HALF = (
    "Training in bfloat16, B=32 and 128, H=512 and 1,024; divided by our float32, and"
    " by torch's layer under autocast:"
)
MEMORY = (
    "Temporary memory of the programs, by the compiler's count, divided by what they"
    " take without `accelerate`; and the largest difference in a forward pass:"
)
MODE_WORDS = {"train": "in training", "forward": "in a forward pass"}


def text(paths: Iterable[Path]) -> str:
    """A list for each subject, with a line for each machine."""
    reports = [report.load(path) for path in paths]
    subjects: list[tuple[str, Callable]] = [
        (SLOWER, slower),
        (MEMORY, _memory),
        (HALF, _half),
    ]
    return "\n\n".join(
        "\n".join([head, "", *(f"- {machine(r)}: {say(rows)}." for r, rows in reports)])
        for head, say in subjects
    )


def slower(records) -> str:
    """How many programs are slower with `accelerate`, and which."""
    programs = [row for row in records if row["section"] == "programs"]
    return ", and ".join(f"{MODE_WORDS[m]} {_of_mode(programs, m)}" for m in MODES)


def _of_mode(programs: Sequence[dict], mode: str) -> str:
    pair = OURS, ORIGINAL
    known = [row for row in programs if is_known(row, mode, *pair)]
    ratios = [
        (row["case"]["program"], ratio_interval(row, mode, *pair)) for row in known
    ]
    slower = [
        "{}: {:.2f} [{:.2f}, {:.2f}]".format(name, *estimate)
        for name, estimate in ratios
        if estimate.low > 1
    ]
    count = f"{len(slower) or 'none'} of {len(known)}"
    return f"{count} ({'; '.join(slower)})" if slower else count


def _memory(records) -> str:
    programs = [row for row in records if row["section"] == "programs"]
    train = _temporaries(programs, "train")
    mean = geometric_mean(ours / theirs for ours, theirs, _ in train)
    ours, theirs, name = max(train, key=lambda each: each[0] / each[1])
    worst = f"{ours / theirs:.2f} ({name}, {theirs / 1e6:.2g} MB)"
    told = f"in training {mean:.2f} in the mean of {len(train)}, at most {worst}"
    ours, theirs, name = max(
        _temporaries(programs, "forward"), key=lambda each: each[0] - each[1]
    )
    return f"{told}; in a forward pass {(ours - theirs) / 1e6:.1f} MB more ({name})"


def _temporaries(programs, mode) -> list[tuple[int, int, str]]:
    """Bytes with `accelerate`, bytes without, and the name of each program."""
    found = []
    for row in programs:
        sides = [row["contenders"][name].get(mode) for name in (OURS, ORIGINAL)]
        if all(side and side["temp_bytes"] > 0 for side in sides):
            ours, theirs = (side["temp_bytes"] for side in sides)
            found.append((ours, theirs, row["case"]["program"]))
    return found


def _half(records) -> str:
    rows = [row for row in records if row["section"] == "bf16"]
    spans = [("", _span(rows, "scanrnn@float32"), "float32")]
    for cell, name in (("lstm", "an LSTM "), ("gru", "a GRU ")):
        of_cell = [row for row in rows if row["case"]["cell"] == cell]
        spans.append((name, _span(of_cell, "torch"), "torch's time"))
    return ", ".join(f"{who}{span} of {what}" for who, span, what in spans if span)


def _span(rows, peer) -> str:
    """The least and the largest ratio, of those that are known."""
    pair = "scanrnn", peer
    known = [row for row in rows if is_known(row, "train", *pair)]
    found = sorted(ratio(row, "train", *pair) for row in known)
    if not found:
        return ""
    return f"{found[0]:.2f} to {found[-1]:.2f} ({len(found)} of {len(rows)} sizes)"
