"""Writes the pages that are lists of names: the API and a page for each cell.

`python docs/site_tools/pages.py` writes them anew; a test compares them with the
package. What they say comes from the docstrings when the site is built.
"""

import importlib
import inspect
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1]
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

from site_tools import names  # noqa: E402

TITLES = {
    "scanrnn": "scan, plan, accelerate",
    "scanrnn.cells": "cells",
    "scanrnn.nnx": "layers for Flax NNX",
    "scanrnn.linen": "layers for Flax Linen",
    "scanrnn.training": "training",
    "scanrnn.serving": "streaming and export",
    "scanrnn.interop": "weights of other libraries",
    "scanrnn.machines": "data sheets of machines",
    "scanrnn.planner": "from a step to a plan",
    "scanrnn.executors": "ways to run a plan",
}
# Values, which have no docstrings of their own.
DATA = {
    "SCHEMES": "How parameters start, by the name that `Cell.init` takes as `scheme`.",
    "RECIPES": "Options of `python -m scanrnn train`, by the name of `--recipe`.",
    "FAULTS": 'What was not finite, by the index `Metrics.fault`. "forward" means the '
    "outputs or the carry.",
    "MACHINES": "Every data sheet, by its name, such as ``h100`` or ``tpu v5e``.",
    "EXECUTORS": "Every executor, by the name that `implementation` takes.",
}


def pages() -> dict[Path, str]:
    """The text of every page, by its path."""
    made, wrapping = names.cells_and_wrappers()
    found = {DOCS / "cells" / f"{name}.md": _cell(name) for name in made}
    found |= {DOCS / "cells" / f"{name}.md": _wrapper(name) for name in wrapping}
    found[DOCS / "cells" / "index.md"] = _cells(made, wrapping)
    for module in names.MODULES:
        found[_path(module)] = _module(module)
    found[DOCS / "api" / "index.md"] = _api()
    return found


def _path(module):
    return DOCS / "api" / f"{module.removeprefix('scanrnn.')}.md"


def _summary(value):
    """The first line of a docstring, without its stop."""
    return (inspect.getdoc(value) or "").partition("\n")[0].rstrip(".")


def _rst(*lines):
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _toctree(paths):
    return "\n".join(["```{toctree}", ":hidden:", "", *paths, "```"])


def _entry(module, name):
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        options = ["   :members:", "   :special-members: __call__"]
        return [f".. autoclass:: {name}", *options, ""]
    if callable(value):
        return [f".. autofunction:: {name}", ""]
    return [f".. py:data:: {name}", "", f"   {DATA[name]}", ""]


def home_of(module: str, name: str) -> str:
    """The module on whose page a name is described, also where others have it too."""
    value = getattr(importlib.import_module(module), name)
    first = getattr(importlib.import_module("scanrnn"), name, None)
    return "scanrnn" if first is value else module


def _module(module):
    """All names of a module: a table of them, then each that has no other page."""
    found = {name: home_of(module, name) for name in names.public_names(module)}
    here = [name for name, home in found.items() if home == module]
    if module == "scanrnn.cells":
        elsewhere = sum(names.cells_and_wrappers(), [])
        elsewhere += sum(_carries().values(), [])
        here = [name for name in here if name not in elsewhere]
    table = [f"   {home}.{name}" for name, home in found.items() if name not in DATA]
    return "\n\n".join(
        [
            f"# {module}: {TITLES[module]}",
            _rst(
                f".. automodule:: {module}",
                "   :no-members:",
                "",
                f".. currentmodule:: {module}",
                "",
                ".. autosummary::",
                "   :nosignatures:",
                "",
                *[row.replace(f"   {module}.", "   ") for row in table],
                "",
                *(line for name in here for line in _entry(module, name)),
            ),
            "",
        ]
    )


def _api():
    lines = [
        f"- [`{module}`]({_path(module).name}): {TITLES[module]}"
        for module in names.MODULES
    ]
    return "\n".join(
        [
            "# API reference",
            "",
            "Every public name, with its docstring. Shapes are in brackets: T steps,",
            "B examples of a batch, D input features, H features of the carry.",
            "",
            *lines,
            "",
            _toctree(f"{module} <{_path(module).stem}>" for module in names.MODULES),
            "",
        ]
    )


def _carries():
    """The names of the carries that are defined beside each factory."""
    from scanrnn import cells

    found = {name: [] for name in sum(names.cells_and_wrappers(), [])}
    rooms = {getattr(cells, name).__module__: name for name in found}
    for name in names.public_names("scanrnn.cells"):
        room = getattr(getattr(cells, name), "__module__", None)
        if name.endswith("Carry") and room in rooms:
            found[rooms[room]].append(name)
    return found


def _layers(factory):
    """The modules of NNX and of Linen that run a factory's cells, as links."""
    from scanrnn import cells, linen, nnx

    make = getattr(cells, factory)
    for room in (nnx, linen):
        found = [n for n, v in vars(room).items() if getattr(v, "_make", None) is make]
        for name in sorted(found, key=lambda n: (n.endswith("Cell"), n)):
            yield f"{{py:class}}`{room.__name__}.{name}`"


CELL = """\
# {name}

{function}

## What it does

```{{image}} images/{name}.png
:alt: Response of {name} to a pulse, and the size of its gradient by distance
:class: cell-plot
```

Left: outputs of eight units, with weights as `init` draws them, after a pulse of one
step in the input. Right: the size of the gradient of the last output with respect to an
input, divided by that for the last input, over the steps between the two. If the curve
falls slowly, the cell has a long memory.

## Layers

{layers}

Any cell also runs in {{py:class}}`scanrnn.nnx.RNN` and {{py:class}}`scanrnn.linen.RNN`,
and one step at a time in {{py:class}}`scanrnn.nnx.RNNCell` and
{{py:class}}`scanrnn.linen.RNNCell`.
"""

CELLS = """\
# Cells

A cell is a record of pure functions. `cell.init` draws its parameters, `cell.step` is
one time step with the equations of the paper in it, and `cell.initial_carry` gives the
carry before the first step. Values and every gradient are compared, in float64, with
the same equations in NumPy.

*GEMMs in the loop* are matrix products and convolutions that remain in each step after
planning, forward and in reverse, with the cell's default options.

| cell | what it is | GEMMs in the loop | layer of `scanrnn.nnx` |
|---|---|---|---|
{cells}

The `norm`, `integration`, `heads` and `recurrent_dropout` options are in
{{py:class}}`scanrnn.cells.GateOptions`; those of convolutions are in
{{py:class}}`scanrnn.cells.ConvOptions`.

These functions take a cell and give a cell:

| wrapper | what it does |
|---|---|
{wrappers}

{toctree}
"""


def _function(name):
    return _rst(".. currentmodule:: scanrnn.cells", "", f".. autofunction:: {name}")


def _cell(name):
    layers = "\n".join(f"- {link}" for link in _layers(name))
    text = CELL.format(name=name, function=_function(name), layers=layers)
    if carries := _carries()[name]:
        body = [line for carry in carries for line in _entry("scanrnn.cells", carry)]
        block = _rst(".. currentmodule:: scanrnn.cells", "", *body)
        text += f"\n## Its carry\n\n{block}\n"
    return text


def _wrapper(name):
    return f"# {name}\n\n{_function(name)}\n"


def _cells(made, wrapping):
    from scanrnn import cells
    from tests.cell_table import ONE_OF_EACH

    counts = {row.factory: row.gemms for row in ONE_OF_EACH.values()}
    made = sorted(made, key=list(counts).index)

    def line(name, *more):
        return "| ".join(
            ["", f"[`{name}`]({name}.md) ", *(f"{m} " for m in more), ""]
        ).strip()

    def what(name):
        return _summary(getattr(cells, name))

    rows = [
        line(
            name,
            what(name),
            " and ".join(map(str, counts[name])),
            next(_layers(name)).replace("`scanrnn", "`~scanrnn"),
        )
        for name in made
    ]
    return CELLS.format(
        cells="\n".join(rows),
        wrappers="\n".join(line(name, what(name)) for name in wrapping),
        toctree=_toctree([*made, *wrapping]),
    )


def main() -> None:
    """Writes all pages, and deletes those of names that are gone."""
    wanted = pages()
    for folder in ("api", "cells"):
        for path in (DOCS / folder).glob("*.md"):
            if path not in wanted:
                path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
