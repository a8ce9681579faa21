"""The section of the report on the speed of XLA's matrix products alone."""

from benchmarks.cases import MODES
from benchmarks.products_alone import KEY
from benchmarks.tables import table


def tables(limits: dict, records: list[dict]) -> list[str]:
    """The section in Markdown: products alone, and beside them whole LSTMs."""
    parts = []
    if limits.get("products"):
        parts.append(_products(limits["products"]))
    if alone := limits.get(KEY):
        parts.append(_alone(alone, records))
    return ["## Products alone", *parts] if parts else []


def _products(rows) -> str:
    kinds = [name for name in rows[0] if isinstance(rows[0][name], dict)]
    body = []
    for row in rows:
        cells = [f"{row[k]['gflops']:.0f} ({row[k]['cores']:.1f} cores)" for k in kinds]
        body.append([f"B={row['B']} H={row['H']} {row['dtype']}", *cells])
    about = (
        "The products of an LSTM under XLA and nothing else: GFLOP/s, and how many"
        " cores were busy."
    )
    return f"{about}\n\n{table(['product', *kinds], body)}"


def _alone(rows, records) -> str:
    """Milliseconds of all products of an LSTM, beside those of whole steps."""
    heads = [f"{mode}: {who}" for mode in MODES for who in ("products", *_WHO)]
    body = []
    for row in rows:
        cells = []
        for mode in MODES:
            cells.append(f"{1e3 * row[mode]:.3g}")
            cells += [_median(row, mode, name, records) for name in _WHO]
        size = f"T={row['T']} B={row['B']} D={row['D']} H={row['H']} {row['dtype']}"
        body.append([size, *cells])
    about = (
        "Milliseconds: the products of an LSTM one after the other and nothing else,"
        " at their fastest, beside the medians of whole steps. They are no lower bound:"
        " a whole step may run its products in a faster way."
    )
    return f"{about}\n\n{table(['case', *heads], body)}"


_WHO = ("scanrnn", "torch")


def _median(row, mode, name, records) -> str:
    sizes = ("T", "B", "D", "H", "dtype")
    for record in records:
        case, contenders = record["case"], record["contenders"]
        alike = case.get("cell") == "lstm" and not case.get("last")
        alike = alike and all(case[key] == row[key] for key in sizes)
        if alike and "torch" in contenders and mode in contenders.get(name, {}):
            return f"{1e3 * contenders[name][mode]['median']:.3g}"
    return "-"
