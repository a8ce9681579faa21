"""What a record says: costs of a step, loops beside, ratios of two contenders."""

from collections.abc import Iterator
from typing import NamedTuple

# What a machine's loops are measured in.
UNITS = {"h100": "launches", "v5e": "cycles", "cpu": "launches"}


class PerStep(NamedTuple):
    """The loops over time, by launches or cycles in each step.

    Attributes:
      forward: of the first of the two that run longest.
      reverse: of the other; None where there is one loop or none.
      beside: how many other loops there are.
    """

    forward: float | None
    reverse: float | None
    beside: int

    @property
    def total(self) -> float:
        return (self.forward or 0) + (self.reverse or 0)


def per_step(record: dict) -> PerStep:
    """The loops of a program that go over the sequence, and how many do not.

    Those over time are the two with most trips (one in a forward pass). A loop over
    two steps at once counts half of its body for each. Where one goes over chunks and
    one in it over the steps of a chunk, the latter is meant: what is done once for a
    chunk counts in the whole program alone, as what is done once for all steps.
    """
    unit, T = UNITS[record["machine"]], record["case"]["T"]
    wanted = 2 if record["mode"] == "train" else 1
    outer = [_over_steps(nest, T) for nest in _nests(record["loops"])]

    def length(loop):
        return (loop["trips"] or 0, loop[unit])

    chosen = sorted(outer, key=length, reverse=True)[:wanted]
    # In the order of the schedule: the reverse loop needs what the forward one gives.
    costs = [loop[unit] * (loop["trips"] or 1) / T for loop in outer if loop in chosen]
    costs += [None] * (2 - len(costs))
    beside = len(record["loops"]) - sum(loop["loops"] for loop in chosen)
    return PerStep(costs[0], costs[1], beside)


def _over_steps(nest: list[dict], T: int) -> dict:
    """The loop over steps of an outermost loop, and of how many it is made."""
    chunks, *inner = nest
    for loop in inner:
        trips = (chunks["trips"] or T) * (loop["trips"] or T)
        if trips <= T:
            return loop | {"trips": trips, "loops": 2}
    return chunks | {"loops": 1}


def _nests(loops: list[dict]) -> list[list[dict]]:
    """Each outermost loop with those in it, which come after it."""
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

    The cases are cells in their sizes, or other people's `programs`.
    """
    found: dict[str, dict[str, dict]] = {}
    for row in rows:
        if ("program" in row["case"]) != programs or "error" in row:
            continue
        if (row["machine"], row["mode"]) == (machine, mode):
            found.setdefault(str(row["case"]), {})[row["contender"]] = row
    yield from found.values()


def ratio(case: dict[str, dict], what: str, over: str, under: str) -> float | None:
    """`over / under` of a number; None where either is missing or nothing.

    Of cycles there is none where a kernel is called: the compiler does not know them.
    """
    pair = [case.get(name, {}) for name in (over, under)]
    if what == "cycles" and any(record.get("kernels") for record in pair):
        return None
    numbers = [record.get(what) for record in pair]
    return numbers[0] / numbers[1] if all(numbers) else None


def ratios(
    rows, machine, what, over="scanrnn", under="lax_scan", mode="train", programs=False
):
    """All such ratios of a machine."""
    chosen = cases(rows, machine, mode, programs)
    found = [ratio(case, what, over, under) for case in chosen]
    return [number for number in found if number is not None]
