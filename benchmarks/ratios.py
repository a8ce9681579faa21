"""Tables of ratios: the contenders of a section beside its yardstick.

The yardstick is the contender by whose times all others are divided.
"""

from benchmarks import suite, tables
from benchmarks.aims import Records, geometric_mean
from benchmarks.cases import MODES
from benchmarks.measure import is_known, mark, ratio, ratio_interval

# The yardsticks of each section: the first one that took part in a row is used.
AGAINST = {
    "quick": ("lax_scan",),
    "grid": ("torch",),
    "custom": ("torch_lstm",),
    "seed": ("torch_lstm", "torch"),
    "small": ("lax_scan",),
    "bf16": ("torch",),
    "accelerate": ("scanrnn",),
    "ladder": ("lax_scan",),
    "conv": ("lax_scan",),
    "frameworks": ("torch",),
    "batches": ("torch",),
    "manual": ("torch",),
    "lengths": ("lax_scan",),
    "anchors": ("torch_lstm", "torch"),
    "forum": ("torch_lstm", "torch"),
}


def yardstick(record: dict) -> str:
    """The contender by whose times the times of this record are divided."""
    names = AGAINST[record["section"]]
    return next((n for n in names if n in record["contenders"]), names[-1])


def page(records: Records) -> list[str]:
    """The tables of a section."""
    return [table(records, mode) for mode in MODES]


def table(records: Records, mode: str) -> str:
    """Rows are cases, columns contenders: ratio to the yardstick."""
    names, heads = contenders(records)
    about = (
        f"**{mode}**: time divided by the yardstick's, with its 95 % interval; in"
        " brackets milliseconds, and for scanrnn its share of the GEMM and memory peaks"
    )
    rows = [
        [title(record) + mark(record), *(cell(record, name, mode) for name in names)]
        for record in records
    ]
    means = [mean(records, name, mode) for name in names]
    rows.append(["**geometric mean**", *means])
    return f"{about}\n\n{tables.table(['case', *heads], rows)}"


def contenders(records: Records) -> tuple[list[str], list[str]]:
    """The contenders of a section, and their titles in its tables."""
    names = list(dict.fromkeys(n for r in records for n in r["contenders"]))
    labels = {suite.LADDER["chunked"]: "chunked"}
    if records[0]["section"] == "ladder":
        labels = {spec: rung for rung, spec in suite.LADDER.items()}
    return names, [labels.get(name, name) for name in names]


def title(record: dict) -> str:
    """The cell of a case and its sizes, as the first column of a table."""
    case = record["case"]
    sizes = [f"{name}={case[name]}" for name in "TBSDH" if case.get(name)]
    return " ".join([case["cell"], *sizes])


def absent(record: dict, name: str) -> str:
    """The word in the table for a contender without times; empty if it has times."""
    entry = record["contenders"].get(name)
    if entry is None or "absent" in entry:
        return "-"
    if not entry["gate"]["passed"]:
        return "wrong"
    return ""


def cell(record: dict, name: str, mode: str) -> str:
    """One cell of the table: ratio to the yardstick, its interval, and milliseconds."""
    if missing := absent(record, name):
        return missing
    times = record["contenders"][name][mode]
    inside = f"{1e3 * times['median']:.3g}"
    if name == "scanrnn":
        shares = (times["gemm_share"], times["memory_share"])
        inside += "; " + ", ".join(f"{100 * share:.0f}%" for share in shares)
    number = ratio(record, mode, name, yardstick(record))
    if number is None:
        return f"({inside})"
    shown = f"{number:.2f}"
    estimate = ratio_interval(record, mode, name, yardstick(record))
    if estimate is not None and name != yardstick(record):
        shown += f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{shown} ({inside})"


def operations(times: dict) -> str:
    """The operations that are started in a step of the forward and reverse loop."""
    found = [n for n in times.get("operations", ()) if n is not None]
    return " + ".join(f"{n:.3g}" for n in found) or "-"


def mean(records: Records, name: str, mode: str) -> str:
    """The geometric mean of the ratios that are known, and how many these are."""
    there = [r for r in records if ratio(r, mode, name, yardstick(r)) is not None]
    numbers = known(there, name, mode)
    mean = geometric_mean(numbers)
    if mean is None:
        return "-"
    some = f" ({len(numbers)} of {len(there)})" if len(numbers) < len(there) else ""
    return f"**{mean:.2f}**{some}"


def known(records: Records, name: str, mode: str) -> list[float]:
    """The ratios to the yardstick, of rows in which they are known."""
    pairs = [(record, yardstick(record)) for record in records]
    pairs = [(r, other) for r, other in pairs if is_known(r, mode, name, other)]
    return [ratio(r, mode, name, other) for r, other in pairs]
