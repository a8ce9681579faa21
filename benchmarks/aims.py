"""The aims of the project on a CPU, each with the number that was measured.

An aim has a sentence, a bound, and a function that finds the measured number in the
records (see `measure.record`). The report prints all three, and whether the aim is met.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from benchmarks.cases import MODES
from benchmarks.measure import counts, ratio, same_program
from benchmarks.programs import NOT_WORSE, ORIGINAL, OURS
from benchmarks.suite import PEERS

Records = list[dict]


class Aim(NamedTuple):
    """One line of the report.

    Attributes:
      text: what should hold.
      bound: the limit for the measured number.
      at_most: True if the measured number should be at most the bound, False if it
        should be at least the bound.
      number: `number(records)` gives the measured number, or None if nothing was
        measured.
    """

    text: str
    bound: float
    at_most: bool
    number: Callable[[Records], float | None]

    def met(self, records: Records) -> bool | None:
        """Whether the aim is met; None if nothing was measured."""
        number = self.number(records)
        if number is None:
            return None
        return number <= self.bound if self.at_most else number >= self.bound


def geometric_mean(numbers: Iterable[float]) -> float | None:
    """The geometric mean; None if there are no numbers."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs)) if logs else None


def worst(numbers: Iterable[float]) -> float | None:
    """The largest number; None if there are no numbers."""
    return max(numbers, default=None)


def least(numbers: Iterable[float]) -> float | None:
    """The smallest number; None if there are no numbers."""
    return min(numbers, default=None)


# Bytes that a program may take more: they do not grow with the sequence.
ASIDE = 4_000_000


def beyond(ours: int, theirs: int) -> float:
    """Our bytes without the first `ASIDE`, divided by theirs."""
    return max(ours - ASIDE, 0) / max(theirs, 1)


def ratios(records, section, mode, over, under, what="median", **sizes):
    """All ratios `over / under` of a section, or of all sections if it is None.

    Rows whose times do not count (see `measure.counts`) give no ratio of medians.
    `sizes` are fields of a case, such as `B=32`: only cases that have them take part.
    """
    found = []
    for record in records:
        if section not in (record["section"], None):
            continue
        if what == "median" and not counts(record):
            continue
        if any(record["case"].get(key) != value for key, value in sizes.items()):
            continue
        found.append(ratio(record, mode, over, under, what))
    return [number for number in found if number is not None]


def _at_most(text, bound, summary, *select, **sizes):
    return Aim(text, bound, True, lambda rs: summary(ratios(rs, *select, **sizes)))


def _at_least(text, bound, summary, *select, **sizes):
    return Aim(text, bound, False, lambda rs: summary(ratios(rs, *select, **sizes)))


_PAIR = ("scanrnn", "lax_scan")


def _differing(records, mode):
    """Records in which our program is another one than that of `lax.scan`.

    Where the planner leaves the step to `lax.scan`, both are the same program.
    """
    return [r for r in records if not same_program(r, mode, *_PAIR)]


def _worst_against_scan(records):
    found = []
    for mode in MODES:
        found += ratios(_differing(records, mode), None, mode, *_PAIR)
    return worst(found)


def _mean_memory(records):
    differing = _differing(records, "train")
    return geometric_mean(ratios(differing, None, "train", *_PAIR, "temp_bytes"))


def _grid():
    for mode, mean, most in (("train", 0.85, 1.1), ("forward", 0.9, 1.2)):
        select = ("grid", mode, "scanrnn", "torch")
        text = f"stock cells, {mode}: time / torch"
        yield _at_most(f"{text}, mean", mean, geometric_mean, *select)
        yield _at_most(f"{text}, worst shape", most, worst, *select)


def _custom():
    select = ("custom", "train", "scanrnn", "torch_lstm")
    text = "custom cells, train: time / torch's stock LSTM"
    yield _at_most(f"{text}, mean", 1.1, geometric_mean, *select)
    yield _at_most(f"{text}, worst shape", 1.4, worst, *select)


def _seed():
    for cell, torch in (("seed_rnn", "torch_lstm"), ("lstm", "torch")):
        where = f"T=4096, B=2, {cell}, train"
        yield _at_least(
            f"{where}: times faster than lax.scan",
            6.0,
            least,
            *("seed", "train", "lax_scan", "scanrnn"),
            cell=cell,
        )
        yield _at_least(
            f"{where}: times faster than torch nn.LSTM",
            1.5,
            least,
            *("seed", "train", torch, "scanrnn"),
            cell=cell,
        )


def _never_slower():
    text = "any row, train and forward: time / lax.scan, worst of other programs"
    yield Aim(text, 1.05, True, _worst_against_scan)


def _bf16():
    yield _at_least(
        "bf16, H >= 512, train: times faster than our float32, least",
        2.0,
        least,
        *("bf16", "train", "scanrnn@float32", "scanrnn"),
    )
    yield _at_most(
        "bf16, H >= 512, train: time / torch autocast, worst",
        1.0,
        worst,
        *("bf16", "train", "scanrnn", "torch"),
    )


def _cost():
    yield _at_most(
        "compile time, train / lax.scan, mean",
        1.5,
        geometric_mean,
        *(None, "train", *_PAIR, "compile_seconds"),
    )
    text = "peak temporary memory, train / lax.scan, mean of other programs"
    yield Aim(text, 0.5, True, _mean_memory)


def _accelerate():
    for peer in PEERS[:4]:
        for B, H, bound in ((32, 512, 1.3), (2, 128, 3.0)):
            yield _at_least(
                f"accelerate({peer}), B={B}, H={H}, train: times faster",
                bound,
                least,
                *("accelerate", "train", peer, f"accelerate:{peer}"),
                B=B,
            )


def _worst_program(records, mode, what):
    chosen = [r for r in records if not same_program(r, mode, OURS, ORIGINAL)]
    return worst(ratios(chosen, "programs", mode, OURS, ORIGINAL, what))


def _programs():
    kinds = (("time", "median"), ("temporaries", "temp_bytes"))
    for mode, (word, what) in itertools.product(MODES, kinds):
        text = f"other people's programs, {mode}: {word} / the original's, worst"
        yield Aim(
            text, 1.05, True, functools.partial(_worst_program, mode=mode, what=what)
        )


def _not_worse():
    for mode in MODES:
        for word, bound, number in (
            ("time", 1.03, functools.partial(_slowest, mode=mode)),
            ("temporaries beyond 4 MB", 1.05, functools.partial(_biggest, mode=mode)),
        ):
            text = f"programs with large states, {mode}: {word} / the original's, worst"
            yield Aim(text, bound, True, number)


def _large_states(records, mode):
    chosen = [r for r in records if r["case"].get("program") in NOT_WORSE]
    return [r for r in chosen if not same_program(r, mode, OURS, ORIGINAL)]


def _slowest(records, mode):
    chosen = _large_states(records, mode)
    return worst(ratios(chosen, "programs", mode, OURS, ORIGINAL))


def _biggest(records, mode):
    pairs = [
        [record["contenders"][name].get(mode, {}) for name in (OURS, ORIGINAL)]
        for record in _large_states(records, mode)
    ]
    bytes_ = [[times["temp_bytes"] for times in pair] for pair in pairs if all(pair)]
    return worst(beyond(*pair) for pair in bytes_)


def _worst_error(records):
    found = []
    for record in (r for r in records if r["section"] == "precision"):
        ours, theirs = (record["contenders"][name]["errors"] for name in _PAIR)
        found += [ours[name] / theirs[name] for name in ours]
    return worst(found)


def _precision():
    text = "bf16, every gradient: error / lax.scan's, worst"
    yield Aim(text, 1.05, True, _worst_error)


AIMS: tuple[Aim, ...] = (
    *_grid(),
    *_custom(),
    *_seed(),
    *_never_slower(),
    *_bf16(),
    *_cost(),
    *_accelerate(),
    *_programs(),
    *_not_worse(),
    *_precision(),
)
