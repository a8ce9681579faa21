"""Parts of the report that have the form of documents which others published."""

from benchmarks import ratios, steps
from benchmarks.aims import Records
from benchmarks.cases import MODES
from benchmarks.measure import counts, mark
from benchmarks.tables import table

FRAMEWORKS = ("Theano *", "Torch *", "TensorFlow *")
# Cell, B, H; then three numbers for each framework: compile seconds, and microseconds
# per example in training and in a forward pass.
_PUBLISHED = """
elman   32   128    4.31  104.6   30.9    0.05 259.53 103.06    1.64  278.4  111.5
elman   32   512    4.36  275.2  102.2    0.05  288.2  114.6    1.62  349.7  218.4
elman   32  1024    4.44  443.8  179.5    0.09  381.4  118.8    1.72  530.0  241.7
elman  128   128    4.48   45.4   13.7    0.08   67.7   32.7    1.70   75.5   33.6
elman  128   512    4.40   79.0   23.8    0.09   73.5   34.2    1.63  125.6   86.8
elman  128  1024    4.38  147.8   50.3    0.13  150.2   64.7    1.70  222.5  137.8
lstm    32   128    7.46  289.6   99.1    0.03  434.4   99.9    3.91  820.0  266.7
lstm    32   512    7.59  619.4  200.9    0.19  610.7  201.7    3.97  886.9  324.9
lstm    32  1024    9.62 1013.5  324.1    0.69 1139.8  346.3    3.81 1329.2  562.7
lstm   128   128    7.38  102.9   25.6    0.03  109.8   25.2    3.68  188.6   65.0
lstm   128   512    7.50  256.0   62.8    0.20  214.3   51.4    3.73  255.2  114.2
lstm   128  1024    7.45  583.4  160.2    0.75  558.1  112.4    3.84  592.2  238.1
"""
ABOUT_FRAMEWORKS = """\
The last output against a target, mean squared error, plain gradient descent. Columns
with * are the document's own, of **another machine**: an NVIDIA GTX TITAN X with CUDA
7.5 and cuDNN v5, and a Xeon E5-2630L v3. Their compile time is that of the graph and of
one forward and backward pass; here it is that of tracing and compiling the training
step, and torch has none."""
UNKNOWN = [["-"] * 3] * 3


def published() -> dict[tuple[str, int, int], list[list[str]]]:
    """The three published numbers of each framework, by cell, B and H."""
    found = {}
    for cell, B, H, *numbers in map(str.split, _PUBLISHED.strip().splitlines()):
        found[cell, int(B), int(H)] = [numbers[n : n + 3] for n in (0, 3, 6)]
    return found


def frameworks(records: Records) -> list[str]:
    """Compile seconds and microseconds per example, beside the published ones."""
    whats = (
        ("compile seconds", _compile_seconds),
        ("training, microseconds per example", lambda r, who: _each(r, who, "train")),
        ("forward, microseconds per example", lambda r, who: _each(r, who, "forward")),
    )
    names, heads = ratios.contenders(records)
    parts = [ABOUT_FRAMEWORKS]
    for number, (what, shown) in enumerate(whats):
        rows = []
        for record in records:
            case = record["case"]
            theirs = published().get((case["cell"], case["B"], case["H"]), UNKNOWN)
            ours = [ratios.absent(record, who) or shown(record, who) for who in names]
            title = f"{case['cell']} B={case['B']} H={case['H']}"
            rows.append([title + mark(record), *ours, *(t[number] for t in theirs)])
        parts.append(f"**{what}**\n\n{table(['case', *heads, *FRAMEWORKS], rows)}")
    return parts


def _compile_seconds(record, who):
    seconds = record["contenders"][who]["train"].get("compile_seconds")
    return "-" if seconds is None else f"{seconds:.2f}"


def _each(record, who, mode):
    return f"{1e6 * _median(record, who, mode) / record['case']['B']:.4g}"


def _median(record, who, mode):
    return record["contenders"][who][mode]["median"]


# The size for which operations are compared; `compiled.md` has it for an H100.
SIZE = {"T": 30, "B": 32, "D": 512, "H": 512, "dtype": "float32"}
PAIR = ("lax_scan", "scanrnn")
ABOUT_OPERATIONS = """\
**operations**: what a runtime starts in a step of the forward + reverse loop of
training, at {size}: the instructions of the loops' bodies as XLA has
compiled them. What an H100 starts in a step of these programs is in `compiled.md`."""


def variants(records: Records) -> list[str]:
    """Ratios to the vendor's LSTM, their mean for each cell, operations of a step."""
    return [*ratios.page(records), _means(records), _operations(records)]


def _means(records):
    """The geometric mean over sizes, for each variant."""
    heads = [f"{mode}: {name}" for mode in MODES for name in PAIR]
    rows = []
    for cell in steps.CUSTOM:
        chosen = [r for r in records if r["case"]["cell"] == cell]
        means = [ratios.mean(chosen, name, mode) for mode in MODES for name in PAIR]
        rows.append([cell, *means])
    about = "**mean of each variant**: time divided by that of torch's LSTM"
    return f"{about}\n\n{table(['cell', *heads], rows)}"


def _operations(records):
    rows = []
    for cell in ("lstm", *steps.CUSTOM):
        here = next(
            (r for r in records if r["case"]["cell"] == cell and _has_size(r)), None
        )
        rows.append([cell, *(_started(here, name) for name in PAIR)])
    about = ABOUT_OPERATIONS.format(size=" ".join(f"{n}={SIZE[n]}" for n in "TBDH"))
    return f"{about}\n\n{table(['cell', *PAIR], rows)}"


def _has_size(record):
    return all(record["case"][name] == value for name, value in SIZE.items())


def _started(record, name):
    if record is None or ratios.absent(record, name):
        return "-"
    return ratios.operations(record["contenders"][name]["train"])


def batches(records: Records) -> list[str]:
    """Milliseconds as the batch grows: of the batch, and for each sequence in it."""
    about = "milliseconds; milliseconds per sequence; sequences per second"
    parts = []
    for mode in MODES:
        names, heads = ratios.contenders(records)
        rows = [
            [f"B={r['case']['B']}{mark(r)}", *(_batch(r, who, mode) for who in names)]
            for r in records
        ]
        gains = [_gain(records, who, mode) for who in names]
        rows.append(["**speed-up of a sequence, largest batch**", *gains])
        parts.append(f"**{mode}**: {about}\n\n{table(['batch', *heads], rows)}")
    return parts


def _batch(record, who, mode):
    if missing := ratios.absent(record, who):
        return missing
    seconds, B = _median(record, who, mode), record["case"]["B"]
    return f"{1e3 * seconds:.3g}; {1e3 * seconds / B:.3g}; {B / seconds:,.0f}"


def _gain(records, who, mode):
    """The speed-up per sequence from the smallest to the largest batch, or `-`.

    It is `-` unless both rows count. The two batches were not timed in the same rounds:
    the bounds of the interval are ratios of the bounds of both intervals.
    """
    ends = [min(records, key=_batch_size), max(records, key=_batch_size)]
    if any(ratios.absent(r, who) or not counts(r) for r in ends):
        return "-"
    one, many = (r["contenders"][who][mode] for r in ends)
    sizes = _batch_size(ends[1]) / _batch_size(ends[0])
    shown = f"**{sizes * one['median'] / many['median']:.1f}**"
    if "low" not in one or "low" not in many:
        return shown
    low, high = one["low"] / many["high"], one["high"] / many["low"]
    return f"{shown} [{sizes * low:.1f}, {sizes * high:.1f}]"


def _batch_size(record):
    return record["case"]["B"]


def lengths(records: Records) -> list[str]:
    """Time and temporaries as the sequence grows, and the time of one step."""
    about = "milliseconds (microseconds a step); megabytes of temporaries"
    parts = []
    for mode in MODES:
        names, heads = ratios.contenders(records)
        rows = [
            [f"T={r['case']['T']}{mark(r)}", *(_length(r, who, mode) for who in names)]
            for r in records
        ]
        parts.append(f"**{mode}**: {about}\n\n{table(['steps', *heads], rows)}")
    return parts


def _length(record, who, mode):
    if missing := ratios.absent(record, who):
        return missing
    seconds = _median(record, who, mode)
    shown = f"{1e3 * seconds:.3g} ({1e6 * seconds / record['case']['T']:.3g})"
    taken = record["contenders"][who][mode].get("temp_bytes")
    return shown if taken is None else f"{shown}; {taken / 1e6:.3g}"


PAGES = {
    "frameworks": frameworks,
    "custom": variants,
    "batches": batches,
    "lengths": lengths,
}
