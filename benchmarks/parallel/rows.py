"""Which loops are compiled and timed, at which sizes, and how they are run."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from benchmarks.parallel import loops

LEAKY = "leaky sum with resets"
# The size of the bound on launches.
BOUND = 2048, 8, 32
# All sizes of the leaky sum. Arrays of all steps have at most so many numbers.
LENGTHS, BATCHES, FEATURES = (128, 2048, 32768, 2**20), (1, 8, 64), (1, 64, 512)
MOST = {"h100": 2**30, "v5e": 2**29, "cpu": 2**25}
# The size of loops with matrix memories. `lax.scan` keeps the memories of all steps.
MEMORY = {"h100": (2048, 8, 512), "v5e": (2048, 8, 512), "cpu": (512, 8, 128)}
# The sizes that are done first, and that are also run in chunks.
FIRST = 8, 64


@dataclasses.dataclass(frozen=True)
class Row:
    """A loop that is run in one way.

    Attributes:
      machine: a name in `compiled.targets.ALL`.
      name: a name in `loops.LOOPS` or `loops.MEMORIES`.
      T: steps.
      B: examples in the batch.
      D: features.
      form: one of the names in `forms`.
    """

    machine: str
    name: str
    T: int
    B: int
    D: int
    form: str

    @property
    def key(self) -> str:
        """A readable and unique name."""
        size = f"T={self.T} B={self.B} D={self.D}"
        return f"{self.machine}: {self.name}, {size}, {self.form}"

    def loop(self, draw: Callable[..., Any]) -> loops.Loop:
        """The loop; `draw(*shape)` makes its large arrays."""
        return made(self.name, self.T, self.B, self.D, draw)

    def as_json(self) -> dict:
        """The fields as a dict."""
        return dataclasses.asdict(self)


def made(name: str, *sizes: Any) -> loops.Loop:
    """A loop by its name."""
    return (loops.LOOPS | loops.MEMORIES)[name](*sizes)


def sizes(machine: str, quick: bool = False) -> list[tuple[str, int, int, int]]:
    """Names and sizes `T, B, D`, those of the bound first, then matrix memories.

    The quick ones are those of the bound, of all loops in `loops.LOOPS`.
    """
    named = [(name, *BOUND) for name in loops.LOOPS]
    grid = [(LEAKY, T, B, D) for B in BATCHES for D in FEATURES for T in LENGTHS]
    grid = [size for size in grid if math.prod(size[1:]) <= MOST[machine]]
    grid.sort(key=lambda size: size[2:] != FIRST)
    memories = [(name, *MEMORY[machine]) for name in loops.MEMORIES]
    return named if quick else named + memories + grid


def forms(name: str, T: int, B: int, D: int) -> list[str]:
    """The ways to run a loop: those by hand only if its recurrence is affine."""
    if name in loops.MEMORIES:
        return [loops.SCAN, loops.PLANNED, loops.PRODUCTS]
    left_out = set()
    if name not in loops.BY_HAND:
        left_out |= {loops.HAND, loops.CHUNKS}
    if (T, B, D) != BOUND and (B, D) != FIRST:
        left_out.add(loops.CHUNKS)
    return [form for form in loops.FORMS if form not in left_out]


def rows(machine: str, quick: bool = False) -> list[Row]:
    """All rows of a machine; see `sizes`."""
    return [
        Row(machine, *size, form)
        for size in sizes(machine, quick)
        for form in forms(*size)
    ]
