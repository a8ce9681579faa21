"""The page of NVIDIA's guide: tables, pictures and where the numbers come from."""

import json
import pathlib

from benchmarks.gemms import findings, picture, table
from benchmarks.gemms.products import PHASES
from benchmarks.measure import QUIET
from benchmarks.tables import table as in_markdown

HEAD = """\
# Matrix products of recurrent layers

NVIDIA's "Recurrent Layers User's Guide" says which matrix products a recurrent layer
has, how fast they are for several sizes, and which sizes to choose. Here is the same
for our plans. The guide's figures are of an A100; no number here is of a GPU's clock.

`scanrnn.advise` has the guide's checklist: multiples of 4 or 8, of 64 and of 256,
batch and features above which arithmetic counts, the rules of the persistent mode, and
what a larger batch, more features, more steps or layers side by side would gain.
The guide's layer of GNMT, compiled for a TPU and a GPU, has
[a page of its own](gemms-compiled.md).
"""

PRODUCTS = """\
## Products

A product multiplies `[M, K]` by `[K, N]`. G is the number of gates, S of steps, B the
batch, D the input features, H the hidden features, and F the steps of a layer-to-layer
product: {sizes}.
The plans are those of an H100, for steps as users write them.
"""

SWEEPS = """\
## Sizes

An LSTM in float32 on this CPU, D = H. The time is that of the products alone, in the
form in which the plan runs them: those of a loop step by step, all others at once.
Results were compared with float64 first. Brackets are 95 % intervals. "x" is the time
divided by that of the line before. The grey line is the fastest product that we found,
of two 2048 x 2048 matrices: {peak:.0f} GFLOP/s.
"""

CHUNKS = """\
## Steps of a chunk

The guide's unroll factor F: the steps whose layer-to-layer product runs at once. In our
plans it is `Options(chunk=F)`, and the loop and the weight gradients are in the same
chunks. A whole LSTM with S={S}, B={B}, D=H={H}, training and forward pass, checked
against float64. The rule takes F={train} in training and F={forward} forward.
"""


def write(path: pathlib.Path) -> pathlib.Path:
    """Writes the page and its pictures beside a results file; gives the page."""
    results, stem = json.loads(path.read_text()), path.with_suffix("")
    picture.draw(results, stem)
    page = path.with_suffix(".md")
    page.write_text(markdown(results, stem.name))
    return page


def markdown(results: dict, stem: str) -> str:
    """The whole page."""
    chunks = results["chunks"]
    sizes = {"S": table.SIZES.T} | {k: getattr(table.SIZES, k) for k in "BDH"}
    named = ", ".join(f"{k} = {v}" for k, v in sizes.items())
    parts = [
        HEAD,
        _where(results),
        PRODUCTS.format(sizes=named),
        _products(),
        "The sides of the LSTM's products, to scale, with F = S:",
        f"![sides of the products of an LSTM]({stem}-sides.png)",
        SWEEPS.format(peak=results["peak"]),
        f"![GFLOP/s of the products for several sizes]({stem}-sizes.png)",
        *(
            _sweep(sweep, results["products"])
            for sweep in results["products"]["sweeps"]
        ),
        CHUNKS.format(**chunks, **chunks["chosen"]),
        f"![time of a layer for several chunks]({stem}-chunks.png)",
        _chunks(chunks),
        findings.section(results),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _where(results):
    about = results["machine"]
    units = ", ".join(about["matrix_units"]) or "none"
    versions = ", ".join(f"{k} {about['versions'][k]}" for k in ("jax", "jaxlib"))
    timed = [results["products"], results["chunks"]]
    rounds, disturbed = (
        [sweep[name] for sweep in timed] for name in ("rounds", "disturbance")
    )
    return "\n".join(
        [
            f"- Machine: {about['cpu']}, {about['cores']} cores ({units})",
            f"- Versions: Python {about['python']}, {versions}",
            f"- Commit: {results['commit']}, {results['date']}",
            f"- {min(rounds)} rounds or more of every row, {results['minutes']:g}"
            " minutes. All sizes run in turns.",
            f'- "Not settled": the interval is wider than 3 % to one side. "Disturbed":'
            f" other processes used more than {QUIET} cores meanwhile; at worst"
            f" {max(disturbed):.1f}.",
        ]
    )


def _products():
    heads = ["layer", "product", "M", "N", "K", "times", "guide", "plan", "same?"]
    lines = []
    for line in table.lines():
        formula = table.FORMULAS[line.path, line.phase]
        ours = " and ".join(_sides(row.M, row.N, row.K, row.count) for row in line.ours)
        name = f"{line.path}, {line.phase}"
        lines.append(
            [line.layer, name, *formula, _sides(*line.guide), ours, line.verdict]
        )
    return in_markdown(heads, lines)


def _sides(M, N, K, count):
    times = f", {count} times" if count > 1 else ""
    return f"{M} x {N} x {K}{times}"


def _sweep(sweep, found):
    title, _, sizes = sweep
    heads, rows = ["S", "B", "H"], {tuple(row["size"]): row for row in found["rows"]}
    for words in PHASES.values():
        heads += [f"{words}, GFLOP/s", "x"]
    lines, before = [], None
    for size in sizes:
        row, cells = rows[tuple(size)], list(map(str, size))
        cells[0] += _mark(row, PHASES, found)
        for phase in PHASES:
            cells += _cells(row, before, phase)
        lines.append(cells)
        before = row
    return f"### {title[0].upper()}{title[1:]}\n\n{in_markdown(heads, lines)}"


def _cells(row, before, phase):
    if phase not in row:
        return [f"not timed: gate {row['gate']}", ""]
    value, low, high = picture.gflops(row[phase])
    shown = f"{value:.3g} [{low:.3g}, {high:.3g}]"
    if before is None or phase not in before:
        return [shown, ""]
    return [shown, findings.ratio(row[phase], before[phase])]


def _mark(row, modes, race):
    """The words that say why a row does not count; empty if it counts."""
    settled = all(row[mode]["settled"] for mode in modes if mode in row)
    words = {
        " (not settled)": not settled,
        " (disturbed)": race["disturbance"] > QUIET,
    }
    return "".join(word for word, holds in words.items() if holds)


def _chunks(found):
    rows, modes = found["rows"], ("forward", "train")
    own = {
        mode: next(r for r in rows if r["F"] == str(found["chosen"][mode]))
        for mode in modes
    }
    heads = ["F"]
    for mode in modes:
        heads += [f"{mode}, ms", "over the rule's"]
    lines = []
    for row in rows:
        cells = [row["F"] + _mark(row, modes, found)]
        for mode in modes:
            cells += _milliseconds(row, own[mode], mode)
        lines.append(cells)
    return in_markdown(heads, lines)


def _milliseconds(row, own, mode):
    if mode not in row:
        return [f"not timed: gate {row['gate']}", ""]
    value, low, high = (1e3 * row[mode][name] for name in ("median", "low", "high"))
    shown = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    if row is own:
        return [shown, "**the rule's**"]
    return [shown, findings.ratio(row[mode], own[mode]) if mode in own else ""]
