"""What our times are beside others', in one table: of the results alone."""

import itertools

from benchmarks import aims, report
from benchmarks.cases import MODES
from benchmarks.measure import (
    KNOWN,
    QUIET,
    counts,
    is_known,
    mean_interval,
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

# LSTMs of other libraries on JAX.
LAYERS = {
    "flax_nnx": "Flax NNX's LSTM",
    "flax_linen": "Flax Linen's LSTM",
    "haiku": "Haiku's LSTM",
    "equinox": "Equinox's LSTM",
    "keras": "Keras's LSTM",
}

ENDS = "The same for layers of other libraries."
# The columns of a table of ratios in short, and the head of one of layers.
MEAN = "mean [95 % interval]"
COLUMNS = ("rows", MEAN, "best", "worst")
LAYERS_HEAD = f"time divided by that of: {MEAN} (both ends, sizes)"

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
        f" used at most {QUIET} cores. The reports have all rows. Brackets are 95 %"
        " intervals, by bootstrap over the rounds of one run; for a mean, the rounds of"
        " each size are drawn by themselves."
    )
    heads = ["time of", "", "divided by that of", "on", *COLUMNS]
    lines = [
        line
        for mode, pair in itertools.product(MODES, PAIRS)
        for results, records in reports
        for line in _lines(records, mode, machine(results), *pair)
    ]
    places = "\n".join(where(*one) for one in reports)
    return "\n\n".join([places, rule, table(heads, lines), ENDS, layers(paths)])


def where(results, records) -> str:
    """The machine, the versions, the commit and the date of a report, as an item."""
    info, commit = results["machine_info"], results["commit_info"]
    units = ", ".join(info["matrix_units"]) or "none"
    versions = ", ".join(
        f"{name} {info['versions'][name]}"
        for name in ("jax", "torch")
        if info["versions"].get(name, "absent") != "absent"
    )
    return (
        f"- {machine(results)}; {units}: {versions}, at {commit['id'][:12]},"
        f" {results['datetime'][:10]}. In {sum(map(counts, records))} of"
        f" {len(records)} rows every median has a 95 % interval within 3 % of it."
    )


def layers(paths, peers=("torch", *LAYERS)) -> str:
    """Our times divided by those of other libraries' layers: a column for each machine.

    A number is the mean with its interval, both ends and of how many sizes.
    """
    reports = [report.load(path) for path in paths]
    torch = {results["machine_info"]["versions"]["torch"] for results, _ in reports}
    names = LAYERS | {"torch": f"layers of torch {', '.join(sorted(torch))}"}
    heads = [f"{machine(r)}, {r['datetime'][:10]}" for r, _ in reports]
    lines = [
        [f"{names[peer]}, {what}", *(_short(rows, mode, peer) for _, rows in reports)]
        for peer in peers
        for mode, what in (("train", "training"), ("forward", "forward"))
    ]
    return table([LAYERS_HEAD, *heads], lines)


def _short(records, mode, peer) -> str:
    pair = mode, "scanrnn", peer
    known, _ = _known(records, "grid", *pair)
    numbers = sorted(ratio(row, *pair) for row in known)
    if not numbers:
        return "-"
    ends = f"{numbers[0]:.2f} to {numbers[-1]:.2f}, {len(numbers)}"
    return f"{mean(known, *pair)} ({ends})"


def mean(records, mode, ours, theirs) -> str:
    """The geometric mean of ratios, and its 95 % interval if rounds are known."""
    pair = mode, ours, theirs
    shown = f"{aims.geometric_mean(ratio(row, *pair) for row in records):.2f}"
    estimate = mean_interval(records, *pair)
    if estimate is None:
        return shown
    return f"{shown} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _known(records, section, mode, ours, theirs) -> tuple[list, int]:
    """The rows whose ratio is known, and of how many: both ran, and programs differ."""
    rows = [
        record
        for record in records
        if record["section"] == section
        and ratio(record, mode, ours, theirs) is not None
        and not same_program(record, mode, ours, theirs)
    ]
    return [row for row in rows if is_known(row, mode, ours, theirs)], len(rows)


def _lines(records, mode, on, name, section, peer, words):
    cells = in_short(records, section, mode, "scanrnn", peer)
    if cells:
        yield [name, mode, words, on, *cells]


def in_short(records, section, mode, ours, theirs) -> list[str]:
    """How many ratios of a section are known, their mean, and both ends."""
    pair = mode, ours, theirs
    known, of = _known(records, section, *pair)
    if not known:
        return []
    known.sort(key=lambda record: ratio(record, *pair))
    ends = (_with_interval(known[k], *pair) for k in (0, -1))
    return [f"{len(known)} of {of}", mean(known, *pair), *ends]


def _with_interval(record, mode, ours, theirs) -> str:
    """A ratio with its 95 % interval, and what it is of."""
    found = ratio_interval(record, mode, ours, theirs)
    case = record["case"]
    of = case.get("program") or f"{case['cell']}, B={case['B']}, H={case['H']}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}] ({of})"
