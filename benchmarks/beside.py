"""What our times are beside others', in one table: of the results alone."""

import itertools

from benchmarks import aims, report
from benchmarks.cases import MODES
from benchmarks.measure import (
    KNOWN,
    QUIET,
    counts,
    is_known,
    ratio,
    ratio_interval,
    same_program,
)
from benchmarks.tables import table

# What is compared: its name, the section, who is beside us.
PAIRS = (
    ("stock cells", "grid", "torch", "torch's same layer"),
    ("cells with norms and the like", "custom", "torch_lstm", "torch's LSTM"),
    ("stock cells", "grid", "lax_scan", "`lax.scan`"),
    ("cells with norms and the like", "custom", "lax_scan", "`lax.scan`"),
    ("cells of the forum", "forum", "torch_eager", "the cell written in torch"),
    ("cells of the forum", "forum", "torch_compile", "the same, compiled by torch"),
    ("an LSTM of 1,000 steps", "forum", "numba_loop", "a loop by hand in Numba"),
)


# Instructions for products, the widest first.
UNITS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}


def machine(results: dict) -> str:
    """The machine of a report, such as `AMD EPYC (AVX2), 2 cores`."""
    info = results["machine_info"]
    name = info["cpu"].replace("(R)", "").removesuffix(" Processor")
    widest = next(
        (word for unit, word in UNITS.items() if unit in info["matrix_units"]), ""
    )
    return f"{name} ({widest}), {info['cores']} cores"


def text(paths) -> str:
    """Where and when each report was made, and one table of all."""
    reports = [report.load(path) for path in paths]
    rule = (
        "Contenders take turns, so a ratio is known better than the times. It counts"
        f" here if its 95 % interval is within {KNOWN:.0%} of it and other processes"
        f" used at most {QUIET} cores. The reports have all rows."
    )
    heads = ["time of", "", "divided by that of", "on", "rows", "mean", "best", "worst"]
    lines = [
        line
        for mode, pair in itertools.product(MODES, PAIRS)
        for results, records in reports
        for line in _lines(records, mode, machine(results), *pair)
    ]
    where = "\n".join(_where(*one) for one in reports)
    return f"{where}\n\n{rule}\n\n{table(heads, lines)}"


def _where(results, records):
    info, commit = results["machine_info"], results["commit_info"]
    units = ", ".join(info["matrix_units"]) or "none"
    versions = ", ".join(
        f"{name} {info['versions'][name]}"
        for name in ("jax", "torch")
        if name in info["versions"]
    )
    return (
        f"- {machine(results)}; {units}: {versions}, at {commit['id'][:12]},"
        f" {results['datetime'][:10]}. All medians of a row were known to 3 % in"
        f" {sum(map(counts, records))} of {len(records)} rows."
    )


def claims(paths) -> str:
    """What holds of torch's own layers on each machine, in a sentence."""
    reports = [report.load(path) for path in paths]
    torch = {results["machine_info"]["versions"]["torch"] for results, _ in reports}
    told = "; ".join(filter(None, (_claim(*each) for each in reports)))
    return f"Compared with the layers of torch {' and '.join(sorted(torch))}: {told}."


def _claim(results, records) -> str:
    told = []
    for mode, words in (("train", "training takes"), ("forward", "a forward pass")):
        rows = _known(_rows(records, mode, "grid", "torch"), mode, "torch")
        numbers = sorted(ratio(row, mode, "scanrnn", "torch") for row in rows)
        if numbers:
            mean = f"{words} {aims.geometric_mean(numbers):.2f} times as long"
            ends = f"{numbers[0]:.2f} to {numbers[-1]:.2f}"
            told.append(f"{mean} ({ends}, {len(numbers)} sizes)")
    where = f"on {machine(results)}, {results['datetime'][:10]},"
    return f"{where} {' and '.join(told)}" if told else ""


def _rows(records, mode, section, peer):
    """Where both were timed, and ran programs that differ."""
    return [
        record
        for record in records
        if record["section"] == section
        and ratio(record, mode, "scanrnn", peer) is not None
        and not same_program(record, mode, "scanrnn", peer)
    ]


def _known(records, mode, peer):
    return [r for r in records if is_known(r, mode, "scanrnn", peer)]


def _lines(records, mode, where, name, section, peer, words):
    rows = _rows(records, mode, section, peer)
    chosen = sorted(
        _known(rows, mode, peer), key=lambda r: ratio(r, mode, "scanrnn", peer)
    )
    if chosen:
        numbers = [ratio(record, mode, "scanrnn", peer) for record in chosen]
        ends = (_with_interval(chosen[k], mode, peer) for k in (0, -1))
        mean = f"{aims.geometric_mean(numbers):.2f}"
        yield [name, mode, words, where, f"{len(chosen)} of {len(rows)}", mean, *ends]


def _with_interval(record, mode, peer):
    """A ratio with its 95 % interval, and the sizes that it is of."""
    found = ratio_interval(record, mode, "scanrnn", peer)
    case = record["case"]
    sizes = f"{case['cell']}, B={case['B']}, H={case['H']}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}] ({sizes})"
