"""Times all rows on this CPU: the ways to run a loop take turns; see `race`."""

import json
import pathlib

from benchmarks import machine, measure, origin
from benchmarks.cases import MODES
from benchmarks.compiled.targets import HERE
from benchmarks.parallel import loops, rows
from benchmarks.programs._base import normal
from benchmarks.programs.measure import Checked, contender
from benchmarks.race import Race

# The least rounds of a row; one of the largest takes three seconds.
LEAST = 30


def run(path: pathlib.Path, quick: bool, budget: float) -> None:
    """Times all rows, and keeps each as soon as it is done.

    Args:
      path: the results file.
      quick: only the sizes of the bound.
      budget: seconds for the rounds of a row.
    """
    machine.prepare()
    about, records = origin.origin(), []
    for size in rows.sizes(HERE, quick):
        records.append(_record(size, budget))
        text = json.dumps(about | {"rows": records}, indent=1)
        path.write_text(text + "\n")
        print(size, _words(records[-1]), flush=True)


def _record(size, budget):
    name, *sides = size
    loop = rows.made(name, *sides, normal)
    forms = rows.forms(*size)
    ways = [contender(form, loops.function(loop, form)) for form in forms]
    entered = [(loop.program, way) for way in ways]
    race = Race(entered, MODES, ready=Checked())
    race.run(budget, LEAST)
    return {
        **dict(zip(("name", "T", "B", "D"), size, strict=True)),
        "disturbance": race.disturbance,
        "settled": race.settled,
        "contenders": {e.contender.name: _entry(e) for e in race.entries},
    }


def _entry(entry):
    about = {"gate": entry.verdict._asdict()}
    if not entry.runs:
        return about
    return about | {mode: measure.timings(entry, mode) for mode in MODES}


def _words(record):
    """Ratios to `lax.scan` in training."""
    found = {
        form: measure.ratio(record, "train", form, loops.SCAN)
        for form in record["contenders"]
    }
    return {form: ratio and round(ratio, 2) for form, ratio in found.items()}
