"""The timed part: products over sizes, and a whole layer over steps of a chunk.

All sizes run in turns in one race, each once, however many sweeps it is in. So medians
are of the same rounds, and ratios of two sizes can be given with their intervals.
"""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import measure
from benchmarks.cases import MODES, Case
from benchmarks.contenders._base import Contender
from benchmarks.contenders.scanrnn import with_options
from benchmarks.gemms import products
from benchmarks.gemms.table import Sizes, plan_step
from benchmarks.race import MIN_ROUNDS, SETTLED, Race


class Sweep(NamedTuple):
    """Sizes `(S, B, H)` of an LSTM with as many inputs as features.

    Attributes:
      title: what varies, in words.
      axis: the letter that varies.
      sizes: the sizes, in order.
    """

    title: str
    axis: str
    sizes: tuple[tuple[int, int, int], ...]


SWEEPS = (
    Sweep("features", "H", tuple((32, 32, H) for H in (64, 128, 256, 512, 1024))),
    Sweep("batch", "B", tuple((32, B, 512) for B in (1, 4, 16, 32, 64, 128))),
    Sweep("steps", "S", tuple((S, 32, 512) for S in (2, 4, 8, 16, 32, 64, 128))),
    Sweep(
        "batch, B x S = 1024",
        "B",
        tuple((1024 // B, B, 512) for B in (1, 4, 16, 64, 256)),
    ),
)
QUICK_SWEEPS = (
    Sweep("features", "H", ((4, 4, 16), (4, 4, 32))),
    Sweep("batch", "B", ((4, 1, 16), (4, 2, 16))),
    Sweep("steps", "S", ((2, 4, 16), (4, 4, 16))),
    Sweep("batch, B x S = 16", "B", ((16, 1, 16), (4, 4, 16))),
)
# S, B and H of the layer whose steps of a chunk vary.
LAYER, QUICK_LAYER = (64, 32, 512), (4, 4, 32)
# Products as planned loops run them, also where a step is left to `lax.scan`.
PLANNED = {"machine": "cpu", "implementation": "planned"}
# The products of a plan, which is in the place of a case.
PRODUCTS = Contender("products", lambda plan: None, products.ready)


def run(sweeps: Sequence[Sweep], budget: float, least: int = MIN_ROUNDS) -> dict:
    """Times the products of all sizes of the sweeps; a record of plain numbers."""
    sizes = dict.fromkeys(size for sweep in sweeps for size in sweep.sizes)
    plans = [plan_step("lstm", Sizes(S, B, H, H), **PLANNED) for S, B, H in sizes]
    race = Race([(plan, PRODUCTS) for plan in plans], products.PHASES, _ready)
    race.run(budget, least)
    rows = []
    for size, plan, entry in zip(sizes, plans, race.entries, strict=True):
        row = {"size": size, "gate": str(entry.verdict)}
        for phase in race.modes if entry.runs else ():
            work = products.flops(plan, phase)
            row[phase] = _times(entry, phase) | {"flops": work}
        rows.append(row)
    return {"sweeps": sweeps} | _rounds(race) | {"rows": rows}


def _ready(plan, contender):
    return contender.setup(plan)


def run_chunks(layer, budget: float, least: int = MIN_ROUNDS) -> dict:
    """Times a whole layer for several steps of a chunk, those of the rule among them.

    Asking for as many steps as the rule takes gives the same program.
    """
    S, B, H = layer
    plan = plan_step("lstm", Sizes(S, B, H, H), machine="cpu")
    chosen = {"train": plan.chunk or S, "forward": plan.value_chunk or S}
    powers = [4**k for k in range(S.bit_length()) if S % 4**k == 0]
    chunks = sorted({*powers, *chosen.values(), S})
    case = Case("lstm", S, B, H, H)
    race = Race([(case, with_options(str(F), chunk=F)) for F in chunks], MODES)
    race.run(budget, least)
    rows = [
        {"F": entry.contender.name, "gate": str(entry.verdict)}
        | {mode: _times(entry, mode) for mode in race.modes if entry.runs}
        for entry in race.entries
    ]
    return {"S": S, "B": B, "H": H, "chosen": chosen} | _rounds(race) | {"rows": rows}


def _times(entry, mode) -> dict:
    found = measure.timings(entry, mode)
    width = max(found["high"] - found["median"], found["median"] - found["low"])
    return found | {"settled": width <= SETTLED * found["median"]}


def _rounds(race) -> dict:
    return {"rounds": len(race.others), "disturbance": race.disturbance}
