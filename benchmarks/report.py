"""Makes the report (Markdown and PNG) from the results file (JSON) alone.

python -m benchmarks.report benchmarks/results/amd-epyc-2-cores.json
"""

import argparse
import json
import pathlib

from benchmarks import documents, panels, precision, products_page, ratios, suite
from benchmarks.aims import AIMS, Aim, Records
from benchmarks.cases import MODES
from benchmarks.measure import KNOWN, QUIET, counts, ratio
from benchmarks.programs import report as programs
from benchmarks.tables import table


def load(path) -> tuple[dict, Records]:
    """The results file, and the records of its rows."""
    results = json.loads(pathlib.Path(path).read_text())
    return results, results["rows"]


def markdown(results: dict, records: Records, picture: str) -> str:
    """The whole report."""
    parts = [
        "# Benchmarks",
        _where(results, records),
        "## Aims",
        aims_table(AIMS, records),
        f"![time relative to the yardstick of each section]({picture})",
    ]
    for section, rows in suite.SECTIONS.items():
        chosen = [r for r in records if r["section"] == section]
        if chosen:
            parts += [f"## {section.capitalize()}", rows.__doc__]
            parts += documents.PAGES.get(section, ratios.page)(chosen)
            parts += [_notes(chosen)]
    parts += programs.section(records)
    parts += precision.section(records)
    parts += ["## Cost", _costs(records)]
    parts += products_page.tables(results["machine_info"]["limits"] or {}, records)
    return "\n\n".join(part for part in parts if part) + "\n"


def _where(results, records):
    machine, commit = results["machine_info"], results["commit_info"]
    installed = machine["versions"].items()
    versions = ", ".join(f"{k} {v}" for k, v in installed if v != "absent")
    units = ", ".join(machine["matrix_units"]) or "none"
    dirty = " with local changes" if commit.get("dirty") else ""
    return "\n".join(
        [
            f"- Machine: {machine['cpu']}, {machine['cores']} cores ({units}),"
            f" {machine['system']}",
            f"- Versions: Python {machine['python']}, {versions}",
            f"- Commit: {commit['id'][:12]}{dirty}, {results['datetime'][:10]}",
            *_uses(machine),
            *_peaks(machine["limits"]),
            "- Same process, threads and allocator setting for all contenders.",
            f"- {_disturbed(records)}",
            *_method(records),
        ]
    )


def _peaks(peaks):
    if peaks:
        yield (
            f"- Measured peaks: {peaks['gemm_float32']:.0f} GFLOP/s float32,"
            f" {peaks['gemm_bfloat16']:.0f} GFLOP/s bfloat16,"
            f" {peaks['memory']:.0f} GB/s"
        )


def _uses(machine):
    uses = machine.get("torch_uses", "absent")
    if uses != "absent":
        yield f"- torch uses {uses}; XLA all that is in brackets above."


def _method(records):
    """How the rows were timed, and how many of them count."""
    yield (
        f"- {len(records)} rows. Contenders run in turns, and medians of rounds are"
        " compared; every contender was checked against a float64 reference first."
    )
    out = len([r for r in records if "settled" in r and not counts(r)])
    yield (
        "- Rounds went on, 30 at least, until the 95 % interval of each median"
        " (bootstrap over rounds) was within 3 %, or the time for the row was up."
        f" {out} rows did not settle, or others used more than {QUIET} cores: they"
        " are marked, and stand in no aim. Contenders take turns, so a ratio is known"
        " better than the times: a mean counts it if its interval is within"
        f" {KNOWN:.0%} of it and nobody disturbed the row."
    )


def _disturbed(records):
    rows = [record["disturbance"] for record in records if "disturbance" in record]
    count = sum(cores > QUIET for cores in rows)
    return (
        f"In {count} rows other processes used more than {QUIET} cores meanwhile;"
        f" at worst {max(rows, default=0):.1f}."
    )


def aims_table(aims: tuple[Aim, ...], records: Records) -> str:
    """Each aim that was measured, with its bound, the number, and whether it is met."""
    rows = []
    for aim in aims:
        number = aim.number(records)
        if number is not None:
            sign = "at most" if aim.at_most else "at least"
            word = "yes" if aim.met(records) else "**no**"
            rows.append([aim.text, f"{sign} {aim.bound:g}", f"{number:.2f}", word])
    others = len(aims) - len(rows)
    told = f"\n\n{others} other aims: no rows that count in this report." * bool(others)
    return table(["aim", "bound", "measured", "met"], rows) + told


def _costs(records):
    """Compile time, memory and operations of training steps, beside lax.scan's."""
    about = (
        "Compiling the training step, and its temporary memory: scanrnn's, and in"
        " brackets as a multiple of lax.scan's. And how many operations XLA's runtime"
        " starts in a step of its forward + reverse loop, in brackets in lax.scan's."
    )
    rows = {}
    for record in records:
        cells = []
        for what, unit in (("compile_seconds", 1.0), ("temp_bytes", 1e6)):
            factor = ratio(record, "train", "scanrnn", "lax_scan", what)
            if factor is not None:
                mine = record["contenders"]["scanrnn"]["train"][what] / unit
                cells.append(f"{mine:.2f} ({factor:.2f})")
        if len(cells) == 2:
            pair = [
                record["contenders"][who]["train"] for who in ("scanrnn", "lax_scan")
            ]
            cells.append("{} ({})".format(*map(ratios.operations, pair)))
            name = f"{ratios.title(record)} {record['case']['dtype']}"
            rows.setdefault(name, [name, *cells])
    heads = ["case", "compile s", "temporaries MB", "operations a step"]
    return f"{about}\n\n{table(heads, rows.values())}"


def _notes(records):
    """Why contenders are missing, each reason once."""
    reasons = {
        f"- {name}: {entry['absent']}"
        for record in records
        for name, entry in record["contenders"].items()
        if "absent" in entry
    }
    return "\n".join(sorted(reasons))


def draw(records: Records, path) -> None:
    """Draws panels for each section: ratios to the yardstick, a dot for each case."""
    chosen = {s: [r for r in records if r["section"] == s] for s in suite.SECTIONS}
    chosen = {section: rows for section, rows in chosen.items() if rows}
    heights = [1 + 0.25 * len(ratios.contenders(rows)[0]) for rows in chosen.values()]
    drawn = [
        [_panel(section, rows, mode) for mode in MODES]
        for section, rows in chosen.items()
    ]
    for row in programs.panels(records):
        drawn.append(row)
        heights.append(1 + 0.25 * len(row[0].lines))
    panels.draw(path, drawn, (12, sum(heights)), heights)


def _panel(section, records, mode):
    lines = [
        (label, ratios.known(records, name, mode))
        for name, label in zip(*ratios.contenders(records), strict=True)
    ]
    title = f"{section}, {mode}: time / {ratios.yardstick(records[0])}"
    return panels.Panel(title, lines, 0.5, 2.0)


def write(source) -> pathlib.Path:
    """Writes `NAME.md` and `NAME.png` beside `NAME.json`; gives the Markdown's path."""
    source = pathlib.Path(source)
    results, records = load(source)
    picture, report = source.with_suffix(".png"), source.with_suffix(".md")
    draw(records, picture)
    report.write_text(markdown(results, records, picture.name))
    return report


def main(argv=None):
    """Writes the report of each results file that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report")
    parser.add_argument("results", nargs="+", help="results file (JSON)")
    for source in parser.parse_args(argv).results:
        print(write(source).read_text())


if __name__ == "__main__":
    main()
