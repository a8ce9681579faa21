"""What our times are beside others', in one table: of the results alone."""

from benchmarks import aims, report
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


def text(path) -> str:
    """Where and when, and the table."""
    results, records = report.load(path)
    machine, commit = results["machine_info"], results["commit_info"]
    units = ", ".join(machine["matrix_units"]) or "none"
    versions = ", ".join(
        f"{name} {machine['versions'][name]}"
        for name in ("jax", "torch")
        if name in machine["versions"]
    )
    settled = sum(map(counts, records))
    where = (
        f"{machine['cpu']}, {machine['cores']} cores ({units}), {versions}, at "
        f"{commit['id'][:12]}, {results['datetime'][:10]}. On this machine, whose "
        f"speed comes and goes, all medians of a row were known to 3 % in "
        f"{settled} of {len(records)} rows. Contenders take turns, so ratios are known "
        f"better. One counts here if its 95 % interval is within {KNOWN:.0%} of it and "
        f"other processes used at most {QUIET} cores. The report has all rows."
    )
    heads = ["time of", "", "divided by that of", "rows", "mean", "best", "worst"]
    lines = [line for mode in ("train", "forward") for line in _lines(records, mode)]
    return f"{where}\n\n{table(heads, lines)}"


def claim(path) -> str:
    """What holds of torch's own layers, in a sentence or two."""
    results, records = report.load(path)
    machine, told = results["machine_info"], []
    for mode, words in (("train", "training takes"), ("forward", "a forward pass")):
        rows = _known(_rows(records, mode, "grid", "torch"), mode, "torch")
        numbers = sorted(ratio(row, mode, "scanrnn", "torch") for row in rows)
        if numbers:
            mean = f"{words} {aims.geometric_mean(numbers):.2f} times as long"
            ends = f"({numbers[0]:.2f} to {numbers[-1]:.2f})"
            told.append(f"{mean} on average over {len(numbers)} sizes {ends}")
    return (
        f"Beside the layers of torch {machine['versions']['torch']} on "
        f"{machine['cpu']}, {machine['cores']} cores, {results['datetime'][:10]}: "
        f"{', '.join(told)}."
    )


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


def _lines(records, mode):
    for name, section, peer, words in PAIRS:
        rows = _rows(records, mode, section, peer)
        chosen = sorted(
            _known(rows, mode, peer), key=lambda r: ratio(r, mode, "scanrnn", peer)
        )
        if not chosen:
            continue
        numbers = [ratio(record, mode, "scanrnn", peer) for record in chosen]
        ends = (_with_interval(chosen[k], mode, peer) for k in (0, -1))
        mean = f"{aims.geometric_mean(numbers):.2f}"
        yield [name, mode, words, f"{len(chosen)} of {len(rows)}", mean, *ends]


def _with_interval(record, mode, peer):
    """A ratio with its 95 % interval, and the sizes that it is of."""
    found = ratio_interval(record, mode, "scanrnn", peer)
    case = record["case"]
    sizes = f"{case['cell']}, B={case['B']}, H={case['H']}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}] ({sizes})"
