"""Read the schedules that a TPU's compiler writes of our kernels."""

import math
import pathlib
import re

NAMES = {"first_to_last": "forward", "last_to_first": "reverse"}
GRID = r"iteration_bounds: \(([\d, ]+)\)"
# A line for each bundle, with a `>` for each loop around it.
BUNDLE = r"^ *0x[0-9a-f]+ +[A-Z]*: (>*)"
WINDOW = (
    r"kind: (in|out)put, shape index: \{\d*\}\] .*?window shape is (\w+)\[([\d,]*)\], "
    r"while the full shape is \w+\[([\d,]*)\]"
)


def read(folder: str) -> list[dict]:
    """What the schedules in a folder say, a record for each kernel."""
    return list(map(schedule, paths(folder)))


def paths(folder: str) -> list[pathlib.Path]:
    """The files of the last schedules of our kernels."""
    found = sorted(pathlib.Path(folder).glob("*-final_bundles.txt"))
    return [p for p in found if "schedule-analysis" not in p.name and "_to_" in p.name]


def schedule(path: pathlib.Path) -> dict:
    """The numbers of bundles in a kernel's schedule, by the depth in its loops."""
    text = path.read_text()
    depths = [len(m[1]) for m in re.finditer(BUNDLE, text, re.M)]
    name = next(name for name in NAMES if name in path.name)
    windows = [m.groups() for m in re.finditer(WINDOW, text)]
    return {
        "name": NAMES[name],
        "point": depths.count(1),
        "step": depths.count(2),
        # Bundles of loops within a step: the text does not say how often they run.
        "inside": sum(depth > 2 for depth in depths),
        # The text has no grid if all rows lie in fast memory.
        "grid": [int(n) for m in re.findall(GRID, text)[:1] for n in m.split(",")],
        "rows": sorted({w for w in windows if w[2] != w[3]}),
    }


def per_step(kernel: dict) -> float:
    """Bundles of a step, with its share of the bundles of a grid point."""
    parts = math.prod(kernel["grid"][:-1])  # parts of the batch
    if not kernel["step"]:
        return parts * kernel["point"]
    return parts * (kernel["step"] + kernel["point"] / steps_of(kernel))


def steps_of(kernel: dict) -> int:
    """The steps at a point of a kernel's grid."""
    return kernel.get("steps") or max(
        int(shape.split(",")[0]) for *_, shape, _ in kernel["rows"]
    )
