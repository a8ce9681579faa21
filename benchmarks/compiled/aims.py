"""The aims for machines that are not here, each with the number that was found."""

import functools

from benchmarks.aims import Aim, beyond, geometric_mean, worst
from benchmarks.cases import MODES
from benchmarks.compiled import summary
from benchmarks.compiled.suite import OURS, PLAIN
from benchmarks.compiled.targets import TARGETS


def has_norm(cell: str) -> bool:
    """Whether the cell has layer norms."""
    return cell.startswith("ln_")


def _ours(rows, machine):
    """The records of our training steps on a machine."""
    found = summary.cases(rows, machine, "train")
    return [case[OURS] for case in found if OURS in case]


def _launches(text, bound, chosen):
    def number(rows):
        records = [r for r in _ours(rows, "h100") if chosen(r["case"]["cell"])]
        return worst(summary.per_step(record).total for record in records)

    return Aim(text, bound, True, number)


def _beside(rows):
    return worst(summary.per_step(record).beside for record in _ours(rows, "h100"))


def _throughout(machine):
    """The aim for the memory of programs that are bfloat16 throughout."""

    def number(rows):
        chosen = [row for row in rows if row["case"].get("throughout")]
        return geometric_mean(summary.ratios(chosen, machine, "temp_bytes"))

    name = TARGETS[machine].title
    text = f"{name}, train, all bf16: temporaries / lax.scan's, geometric mean"
    return Aim(text, 0.6, True, number)


def _against_scan(machine, what, bound, worst_bound, title):
    name = TARGETS[machine].title
    for summarise, limit in ((geometric_mean, bound), (worst, worst_bound)):
        which = "geometric mean" if summarise is geometric_mean else "worst"
        yield Aim(
            f"{name}, train: {title} / lax.scan's, {which}",
            limit,
            True,
            lambda rows, summarise=summarise: summarise(
                summary.ratios(rows, machine, what)
            ),
        )


def _programs(machine):
    """The aims that no program of other people costs more or takes more memory."""
    name, unit = TARGETS[machine].title, summary.UNITS[machine]

    def cost(rows, mode):
        return worst(summary.ratios(rows, machine, unit, mode=mode, programs=True))

    def memory(rows, mode):
        found = summary.cases(rows, machine, mode, programs=True)
        pairs = [(c[OURS], c[PLAIN]) for c in found if {OURS, PLAIN} <= c.keys()]
        return worst(beyond(*(r["temp_bytes"] for r in pair)) for pair in pairs)

    for mode in MODES:
        text = f"{name}, other people's programs, {mode}"
        for word, bound, number in (
            (unit, 1.03, cost),
            ("temporaries beyond 4 MB", 1.05, memory),
        ):
            yield Aim(
                f"{text}: {word} / the original's, worst",
                bound,
                True,
                functools.partial(number, mode=mode),
            )


AIMS: tuple[Aim, ...] = (
    _launches(
        "NVIDIA H100, train: launches per step, both loops, cells without norms, worst",
        8,
        lambda cell: not has_norm(cell),
    ),
    _launches(
        "NVIDIA H100, train: launches per step, both loops, cells with norms, worst",
        16,
        has_norm,
    ),
    Aim("NVIDIA H100, train: other loops than those two, worst", 0, True, _beside),
    *_against_scan("h100", "launches", 0.35, 0.35, "launches in all"),
    *_against_scan("h100", "temp_bytes", 0.5, 0.5, "temporaries"),
    *_against_scan("v5e", "cycles", 0.4, 0.7, "cycles of the whole step"),
    *_against_scan("v5e", "temp_bytes", 0.5, 0.5, "temporaries"),
    *_programs("h100"),
    *_programs("v5e"),
    _throughout("h100"),
    _throughout("v5e"),
)
