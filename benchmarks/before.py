"""`python -m benchmarks.before 293fdc4`: this package beside itself at a commit.

Both run the same naive steps, in turns, in one process: stock and custom cells, long
sequences and small sizes. It takes some 20 minutes. A program that has the same
instructions at both commits is not timed. `--quick` runs one tiny size, and writes
`.benchmarks/before.*`, which are not committed.
"""

import argparse
import dataclasses
from collections.abc import Iterator

from benchmarks import intervals, machine, measure, origin
from benchmarks.cases import MODES, Case
from benchmarks.measure import QUIET, timings
from benchmarks.race import MIN_ROUNDS
from benchmarks.suite import Row, rows
from benchmarks.tables import table

SECTIONS = ("grid", "custom", "seed", "small")
TINY = (Row("quick", Case("lstm", T=5, B=3, D=4, H=4), ()),)
# A program is slower if all of its interval lies above this.
SLOWER = 1.03
ABOUT = f"""\
The time of a program divided by that of the same step planned by an earlier commit,
{{earlier}}, with its 95 % interval. Programs took turns, in {MIN_ROUNDS} rounds or
more. `same` means that both commits give the same instructions: they were not timed.
Other instructions may be the same work in another order. A time is bold if all of its
interval lies above {SLOWER}."""


def chosen() -> list[Row]:
    """The rows, each case once."""
    return list({row.case: row for row in rows(*SECTIONS)}.values())


def measured(row: Row, earlier: str, seconds: float, least: int = MIN_ROUNDS) -> dict:
    """The record of one row.

    Args:
      row: the case; its contenders do not matter.
      earlier: the contender of the earlier commit.
      seconds: the most seconds of timing.
      least: the least number of rounds.
    """
    pair = "scanrnn", earlier
    race, (entries,) = measure.enter([row._replace(contenders=pair)], MODES)
    wrong = {name: entry.verdict for name, entry in entries.items() if not entry.runs}
    if wrong:
        raise ValueError(f"{row.name}: wrong answers, so no times: {wrong}")
    programs = {
        mode: [entries[name].runner.compiled[mode].program for name in pair]
        for mode in MODES
    }
    race.modes = tuple(mode for mode in MODES if len({*programs[mode]}) > 1)
    if race.modes:
        race.run(seconds, least)
    return {
        "section": row.section,
        "case": dataclasses.asdict(row.case),
        "disturbance": race.disturbance,
        "contenders": {
            name: {mode: timings(entries[name], mode) for mode in race.modes}
            for name in pair
        },
    }


def page(results: dict) -> str:
    """The whole page, from its results file."""
    earlier = f"{results['earlier']} ({results['earlier_date']})"
    heads = ["case", *MODES, *(f"{mode}, ms now" for mode in MODES)]
    lines = [
        [_title(record), *_ratios(record, results), *_milliseconds(record)]
        for record in results["rows"]
    ]
    parts = [
        "# Beside an earlier commit",
        origin.line(results),
        ABOUT.format(earlier=earlier),
        _summary(results),
        table(heads, lines),
    ]
    return "\n\n".join(parts) + "\n"


def _title(record):
    case = record["case"]
    disturbed = " (disturbed)" if record["disturbance"] > QUIET else ""
    return f"{case['cell']} T={case['T']} B={case['B']} H={case['H']}{disturbed}"


def _ratio(record, results, mode) -> intervals.Estimate | None:
    """The time divided by the earlier one; None if both programs are the same."""
    pair = "scanrnn", f"commit:{results['earlier']}"
    return measure.ratio_interval(record, mode, *pair)


def _ratios(record, results) -> Iterator[str]:
    for mode in MODES:
        found = _ratio(record, results, mode)
        shown = "{:.2f} [{:.2f}, {:.2f}]".format(*found) if found else "same"
        yield f"**{shown}**" if found and found.low > SLOWER else shown


def _milliseconds(record) -> Iterator[str]:
    for mode in MODES:
        times = record["contenders"]["scanrnn"].get(mode)
        yield f"{1e3 * times['median']:.3g}" if times else "-"


def _summary(results):
    """How many programs are the same, faster or slower."""
    quiet = [row for row in results["rows"] if row["disturbance"] <= QUIET]
    found = [_ratio(row, results, mode) for row in quiet for mode in MODES]
    timed = [one for one in found if one]
    slower = sum(one.low > SLOWER for one in timed)
    faster = sum(one.high < 1 / SLOWER for one in timed)
    return (
        f"Of {len(found)} programs {len(found) - len(timed)} are the same, {faster} are"
        f" faster by more than 3 % in their whole interval, and {slower} are slower."
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, and writes the page and its numbers into the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.before",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commit", help="7 to 40 digits of its hash")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row")
    parser.add_argument("--quick", action="store_true", help="one tiny size")
    options = parser.parse_args(argv)
    machine.prepare()
    least = 2 if options.quick else MIN_ROUNDS
    seconds = 0.0 if options.quick else options.seconds
    earlier = f"commit:{options.commit}"
    records = []
    for row in TINY if options.quick else chosen():
        records.append(measured(row, earlier, seconds, least))
        print(row.name, flush=True)
    about = {
        "earlier": options.commit,
        "earlier_date": origin.date_of(options.commit),
    }
    results = origin.origin() | about | {"rows": records}
    origin.keep(origin.place("before", options.quick), results, page)


if __name__ == "__main__":
    main()
