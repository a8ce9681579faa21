"""Sentences of `docs/benchmarks.md` about all timed machines, of the results alone."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import report
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
MODE_WORDS = {"train": "in training", "forward": "in a forward pass"}


def text(paths: Iterable[Path]) -> str:
    """A list for each subject, with a line for each machine."""
    reports = [report.load(path) for path in paths]
    subjects: list[tuple[str, Callable]] = [(SLOWER, _slower), (HALF, _half)]
    return "\n\n".join(
        "\n".join([head, "", *(f"- {machine(r)}: {say(rows)}." for r, rows in reports)])
        for head, say in subjects
    )


def _slower(records) -> str:
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
