"""Summaries of records: the cost of a step, and ratios of two contenders."""

from collections.abc import Iterator
from typing import NamedTuple

# The unit in which the loops of a machine are measured.
UNITS = {"h100": "launches", "v5e": "cycles", "cpu": "launches"}


class PerStep(NamedTuple):
    """The cost of the loops over time: launches or cycles for each step.

    Attributes:
      forward: the cost of the forward loop; None if there is no loop.
      reverse: the cost of the reverse loop; None if there are fewer than two loops.
      beside: the number of other loops.
    """

    forward: float | None
    reverse: float | None
    beside: int

    @property
    def total(self) -> float:
        return (self.forward or 0) + (self.reverse or 0)


def per_step(record: dict) -> PerStep:
    """The costs of the loops over the sequence, and the number of other loops.

    The two loops with most trips are those over time (one in a forward pass). If a trip
    takes two steps, each step costs half of the body. If an outer loop goes over chunks
    and an inner loop over the steps of a chunk, the inner one is meant: work that is
    done once for a chunk counts in the whole program only, like work that is done once
    for all steps.
    """
    unit, T = UNITS[record["machine"]], record["case"]["T"]
    wanted = 2 if record["mode"] == "train" else 1
    outer = [_over_steps(nest, T) for nest in _nests(record["loops"])]

    def length(loop):
        return (loop["trips"] or 0, loop[unit])

    chosen = sorted(outer, key=length, reverse=True)[:wanted]
    # In the order of the schedule: the forward loop runs before the reverse loop.
    costs = [loop[unit] * (loop["trips"] or 1) / T for loop in outer if loop in chosen]
    costs += [None] * (2 - len(costs))
    beside = len(record["loops"]) - sum(loop["loops"] for loop in chosen)
    return PerStep(costs[0], costs[1], beside)


def _over_steps(nest: list[dict], T: int) -> dict:
    """The loop over steps in a nest, and the number of loops that it consists of."""
    chunks, *inner = nest
    for loop in inner:
        trips = (chunks["trips"] or T) * (loop["trips"] or T)
        if trips <= T:
            return loop | {"trips": trips, "loops": 2}
    return chunks | {"loops": 1}


def _nests(loops: list[dict]) -> list[list[dict]]:
    """Groups each outermost loop with its inner loops, which follow it."""
    nests: list[list[dict]] = []
    for loop in loops:
        if loop["depth"] == 0:
            nests.append([])
        nests[-1].append(loop)
    return nests


def cases(
    rows: list[dict], machine: str, mode: str, programs: bool = False
) -> Iterator[dict[str, dict]]:
    """For each case the records by contender, without those that failed.

    The cases are cells with their sizes, or with `programs` other people's programs.
    """
    found: dict[str, dict[str, dict]] = {}
    for row in rows:
        if ("program" in row["case"]) != programs or "error" in row:
            continue
        if (row["machine"], row["mode"]) == (machine, mode):
            found.setdefault(str(row["case"]), {})[row["contender"]] = row
    yield from found.values()


def ratio(case: dict[str, dict], what: str, over: str, under: str) -> float | None:
    """`over / under` of a number; None if either is missing or zero.

    The ratio of cycles is also None if a hand-written kernel is called: the compiler
    does not know its cycles.
    """
    pair = [case.get(name, {}) for name in (over, under)]
    if what == "cycles" and any(record.get("kernels") for record in pair):
        return None
    numbers = [record.get(what) for record in pair]
    return numbers[0] / numbers[1] if all(numbers) else None


def ratios(
    rows, machine, what, over="scanrnn", under="lax_scan", mode="train", programs=False
):
    """The ratios of all cases of a machine; see `ratio`."""
    chosen = cases(rows, machine, mode, programs)
    found = [ratio(case, what, over, under) for case in chosen]
    return [number for number in found if number is not None]
