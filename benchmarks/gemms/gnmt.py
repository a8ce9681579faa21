"""`python -m benchmarks.gemms.gnmt`: the page of GNMT's layer, from the results alone.

NVIDIA's guide has two figures of this layer, over batches and over features. Here are
two tables of the same sizes. `benchmarks.gemms.costs` and `benchmarks.compiled.kernels`
compile the rows.
"""

from benchmarks.gemms import costs, picture
from benchmarks.tables import table

PAGE = costs.RESULTS.with_suffix(".md")
PICTURE = costs.RESULTS.with_suffix(".png")
TITLE = "GNMT's layer, compiled"
ABOUT = """\
NVIDIA's guide to recurrent layers compares its standard and its persistent mode on an
LSTM of 256 steps. The persistent mode keeps the weights on chip for all steps. These
are training steps in bfloat16 throughout, by planned loops, by `lax.scan`, and by the
kernels of `pallas_tpu`, which keep the weights in fast memory for all steps. The real
compilers ran, the machines did not. A count is not a time.

- **Floor** is what the matrix units of a TPU v5e need for a step, in the loop forward
  and in the one in reverse: they take a row of the batch in each cycle. **x** is the
  number before it, divided by the floor.
- **Kernels** are the bundles of the schedules of both kernels for one step, from
  [the page of kernels](kernels.md), which names its commit.
- **Loops** are the TPU compiler's estimate of cycles for one step of both loops.
  **In all** is its estimate for the whole training step, divided by 256: it has the
  products outside of the loops, too, which kernels do not change. `lax.scan` has all
  products in its loops.
- **Starts** are kernels and graphs that the host of an H100 starts, divided by 256.
  cuDNN's own persistent mode cannot be compiled without a GPU.

Bundles and cycles come from different stages of the compiler: compare each with the
floor, not with the other."""
SWEEPS = {
    "1024 features, several batches": costs.OVER_B,
    "A batch of 64, several sizes": costs.OVER_H,
}
HEADS = (
    *("B", "H", "floor", "kernels", "x", "loops, planned", "x", "lax.scan", "x"),
    *("in all, planned", "lax.scan", "starts, planned", "lax.scan"),
    *("chosen on the TPU", "on the H100"),
)


def markdown(found: dict, kernels: dict) -> str:
    """The page, from the results of `costs` and the bundles of kernels by size."""
    image = f"![cycles and bundles of a step]({PICTURE.name})"
    return "\n\n".join([f"# {TITLE}", ABOUT, image, *tables(found, kernels)]) + "\n"


def tables(found: dict, kernels: dict) -> list[str]:
    """A table for each of the guide's figures, and where the kernels stop paying."""
    rows = {(r["machine"], r["way"], r["B"], r["H"]): r for r in found["rows"]}
    loops = {way: costs.loops(found["rows"], way) for way in costs.WAYS}
    parts = []
    for title, sizes in SWEEPS.items():
        lines = [_line(size, rows, kernels, loops) for size in sizes]
        parts.append(f"**{title}**\n\n{table(HEADS, lines)}")
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    return [
        *parts,
        *stops(kernels, loops["planned"]),
        f"Compiled at {found['commit']}, {found['date']}; {versions}.",
    ]


def _line(size, rows, kernels, loops) -> list[str]:
    B, H = size
    floor = costs.floor(B, H)
    cells = [str(B), str(H), f"{floor:,.0f}"]
    for numbers in (kernels, *loops.values()):
        taken = numbers.get(size)
        cells += ["", ""] if taken is None else [f"{taken:,.0f}", _times(taken, floor)]
    for machine, what in (("v5e", "cycles"), ("h100", "host_starts")):
        counts = [rows.get((machine, way, B, H), {}).get(what) for way in costs.WAYS]
        cells += ["" if n is None else f"{n / costs.STEPS:,.1f}" for n in counts]
    for machine in ("v5e", "h100"):
        cells.append(rows.get((machine, "planned", B, H), {}).get("chosen", ""))
    return cells


def stops(kernels: dict, planned: dict) -> list[str]:
    """A sentence on the sizes at which planned loops are as near to the floor.

    Args:
      kernels: the bundles of a step, by batch and features.
      planned: the cycles of a step of planned loops, by batch and features.
    """
    sizes = dict.fromkeys(size for sizes in SWEEPS.values() for size in sizes)
    known = [size for size in sizes if size in kernels and size in planned]
    if not known:
        return []
    ended = [_name(size) for size in known if planned[size] <= kernels[size]]
    least = min(known, key=lambda size: planned[size] / kernels[size])
    theirs, ours = (
        _times(numbers[least], costs.floor(*least)) for numbers in (planned, kernels)
    )
    return [
        f"**Where the kernels stop paying**: {'; '.join(ended) or 'at no size here'}. "
        f"They pay least at {_name(least)}: there planned loops take {theirs} times "
        f"the floor, and the kernels {ours} times."
    ]


def _times(taken: float, floor: float) -> str:
    return f"{taken / floor:.2f}"


def _name(size: tuple[int, int]) -> str:
    return "B={}, H={}".format(*size)


def main() -> None:
    """Writes the page and its picture."""
    found, kernels = costs.load(), costs.kernels()
    picture.compiled(found["rows"], kernels, PICTURE)
    PAGE.write_text(markdown(found, kernels))


if __name__ == "__main__":
    main()
