"""The pictures of the page; each has one idea. Lines differ in colour and in marker."""

import pathlib

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.gemms import costs, table
from benchmarks.gemms.products import PHASES
from benchmarks.panels import BLUE, GREEN, ORANGE
from scanrnn.planner import gemms

FONT = {"font.size": 14}
STYLES = {
    "forward": (BLUE, "o", "-"),
    "activations": (ORANGE, "s", "--"),
    "weights": (GREEN, "^", ":"),
    "train": (ORANGE, "s", "--"),
    "planned": (BLUE, "o", "-"),
    "lax.scan": (ORANGE, "s", "--"),
    "kernels": (GREEN, "^", "-"),
    "floor": ("black", "", ":"),
}


def draw(results: dict, stem: pathlib.Path) -> None:
    """Writes the pictures of a machine; their names are `stem` and a word."""
    with matplotlib.rc_context(FONT):
        dimensions(stem.with_name(f"{stem.name}-sides.png"))
        sweeps(results, stem.with_name(f"{stem.name}-sizes.png"))
        chunks(results["chunks"], stem.with_name(f"{stem.name}-chunks.png"))


def dimensions(path: pathlib.Path) -> None:
    """The sides of every product of a planned LSTM, to scale."""
    figure, axes = _figure(2, 3, (12, 9))
    found = [line for line in table.lines() if line.layer == "lstm, G=4"]
    for line in found:
        row, column = gemms.PATHS.index(line.path), gemms.PHASES.index(line.phase)
        axis = axes[1 - row][column]
        _product(axis, line.ours[0], table.FORMULAS[line.path, line.phase])
        axis.set_title(f"{line.path},\n{line.phase}")
    _save(figure, path)


def _product(axis, row, formula):
    """`[M, K] @ [K, N]`: the left operand beside the result, the right one above it."""
    M, N, K = row.M, row.N, row.K
    gap = 0.04 * (K + max(M, N))
    for corner, size, colour in (
        ((0, 0), (K, M), BLUE),
        ((K + gap, M + gap), (N, K), ORANGE),
        ((K + gap, 0), (N, M), GREEN),
    ):
        axis.add_patch(Rectangle(corner, *size, color=colour, alpha=0.6))
    sides = {"M": M, "N": N, "K": K}
    M_, N_, K_ = (f"{getattr(formula, k)} = {v:,}" for k, v in sides.items())
    axis.text(K + 2 * gap + N, M / 2, M_, ha="left", va="center")
    axis.text(K + gap + N / 2, M + K + 1.5 * gap, N_, ha="center", va="bottom")
    axis.text(K / 2, -gap / 2, K_, ha="center", va="top")
    side = max(K + gap + N, M + gap + K)
    axis.set_xlim(-0.1 * side, K + N + 0.5 * side)
    axis.set_ylim(-0.12 * side, M + K + 0.15 * side)
    axis.set_aspect("equal")
    axis.set_axis_off()


def sweeps(results: dict, path: pathlib.Path) -> None:
    """How fast the products are, for every sweep."""
    figure, axes = _figure(2, 2, (12, 9))
    rows = {tuple(row["size"]): row for row in results["products"]["rows"]}
    for axis, (title, letter, sizes) in zip(
        axes.flat, results["products"]["sweeps"], strict=True
    ):
        at = "SBH".index(letter)
        for phase, words in PHASES.items():
            shown = [size for size in map(tuple, sizes) if phase in rows[size]]
            points = [gflops(rows[size][phase]) for size in shown]
            _line(axis, [size[at] for size in shown], points, phase, words)
        axis.axhline(results["peak"], color="grey", linewidth=1)
        _powers(axis, [size[at] for size in sizes])
        axis.set_title(title)
        axis.set_xlabel(letter)
        axis.set_ylim(bottom=0)
    axes[0][0].legend()
    for row in axes:
        row[0].set_ylabel("GFLOP/s")
    _save(figure, path)


def gflops(times: dict) -> tuple[float, float, float]:
    """GFLOP/s by the median, and the bounds of the 95 % interval."""
    seconds = times["median"], times["high"], times["low"]
    value, low, high = (times["flops"] / s / 1e9 for s in seconds)
    return value, low, high


def chunks(found: dict, path: pathlib.Path) -> None:
    """The time of a layer over the steps of a chunk, with the rule's choice."""
    figure, axes = _figure(1, 2, (12, 4.5))
    for axis, mode in zip(axes.flat, ("forward", "train"), strict=True):
        rows = [row for row in found["rows"] if mode in row]
        points = [_milliseconds(row[mode]) for row in rows]
        _line(axis, [int(row["F"]) for row in rows], points, mode, None)
        chosen = [r for r in rows if r["F"] == str(found["chosen"][mode])]
        for row in chosen:
            style = {"markersize": 18, "markerfacecolor": "none", "markeredgewidth": 2}
            at = int(row["F"]), 1e3 * row[mode]["median"]
            axis.plot(*at, "D", color="black", **style, label="the rule's choice")
        _powers(axis, [int(row["F"]) for row in rows])
        axis.set_title(mode)
        axis.set_xlabel("F, steps of a chunk")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("milliseconds")
    axes[0][0].legend()
    _save(figure, path)


def _milliseconds(times):
    return tuple(1e3 * times[name] for name in ("median", "low", "high"))


def compiled(rows: list[dict], kernels: dict, path: pathlib.Path) -> None:
    """GNMT's layer on a TPU: cycles of loops above, bundles of kernels below."""
    with matplotlib.rc_context(FONT):
        _compiled(rows, kernels, path)


def _compiled(rows, kernels, path):
    figure, axes = _figure(2, 2, (12, 8))
    for column, (sizes, at, title) in enumerate(
        ((costs.OVER_H, 1, "B = 64"), (costs.OVER_B, 0, "H = 1024"))
    ):
        upper, lower = axes[0][column], axes[1][column]
        for way in costs.WAYS:
            cycles = costs.cycles(rows, way)
            shown = [size for size in sizes if size in cycles]
            points = [(cycles[size],) * 3 for size in shown]
            _line(upper, [size[at] for size in shown], points, way, way)
        shown = [size for size in sizes if size in kernels]
        for name, numbers in (
            ("kernels", kernels),
            ("floor", {size: costs.floor(*size) for size in shown}),
        ):
            points = [(numbers[size],) * 3 for size in shown]
            _line(lower, [size[at] for size in shown], points, name, name)
        for axis in (upper, lower):
            _powers(axis, [size[at] for size in sizes])
            axis.set_xlabel("BH"[at])
            axis.set_ylim(bottom=0)
        upper.set_title(title)
    axes[0][0].set_ylabel("cycles a step, XLA")
    axes[1][0].set_ylabel("bundles a step, kernel")
    axes[0][0].legend()
    axes[1][0].legend()
    _save(figure, path)


def _line(axis, places, points, name, label):
    """A line through values, with bars for their intervals."""
    colour, marker, style = STYLES[name]
    values = [value for value, _, _ in points]
    below = [value - low for value, low, _ in points]
    above = [high - value for value, _, high in points]
    bars = [below, above] if any(below + above) else None
    axis.errorbar(
        places, values, bars, color=colour, marker=marker or None, linestyle=style,
        capsize=4, markersize=8, label=label,
    )  # fmt: skip


def _powers(axis, places):
    """Ticks at these places, on an axis of powers of two."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(places, [f"{place:g}" for place in places])
    axis.set_xlim(min(places) / 1.2, max(places) * 1.2)
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:,g}")


def _figure(rows, columns, size):
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure, path):
    figure.savefig(path, dpi=100, metadata={"Software": None})
