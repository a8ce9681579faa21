"""The public names of the package: what the API pages have to show."""

import ast
import importlib
import inspect
import types
from pathlib import Path

# The rooms whose names are for users, then those for who writes an executor.
MODULES = (
    *("scanrnn", "scanrnn.cells", "scanrnn.nnx", "scanrnn.linen"),
    *("scanrnn.training", "scanrnn.serving", "scanrnn.interop"),
    *("scanrnn.machines", "scanrnn.planner", "scanrnn.executors"),
)


def public_names(module_name: str) -> list[str]:
    """The names of a module that are for its users, sorted.

    These are its `__all__`; where it has none, what it imports as itself
    (`import x as x`) and what it makes, without names that start with an underscore
    and without modules.
    """
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None) or _named(Path(module.__file__))
    values = {name: getattr(module, name) for name in names}
    return sorted(
        (n for n, v in values.items() if not isinstance(v, types.ModuleType)),
        key=lambda name: (name.lower(), name),
    )


def _named(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            found = [a.asname for a in node.names if a.asname == a.name]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = [t.id for t in targets if isinstance(t, ast.Name)]
        else:
            found = []
        yield from (name for name in found if not name.startswith("_"))


def cells_and_wrappers() -> tuple[list[str], list[str]]:
    """The factories of cells, and those that wrap a cell, by name."""
    from scanrnn import cells

    made, wrapping = [], []
    for name in public_names("scanrnn.cells"):
        value = getattr(cells, name)
        if not inspect.isfunction(value):
            continue
        signature = inspect.signature(value)
        if signature.return_annotation is cells.Cell:
            (wrapping if "cell" in signature.parameters else made).append(name)
    return made, wrapping
