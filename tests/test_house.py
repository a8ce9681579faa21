"""Rules of this project that no linter checks."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import scanrnn
from tests.tiers import ONE_IN

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scanrnn"
SOURCES = sorted(PACKAGE.rglob("*.py"))
# Code that users read, and whose examples run.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Room: the rooms it may import, and the libraries.  A room is a folder or a file of the
# package; dependencies point down this list.
ROOMS = {
    "_allocator": (set(), set()),
    "_files": (set(), set()),
    "_warn": (set(), set()),
    "machines": (set(), {"jax"}),
    "planner": ({"machines"}, {"jax", "numpy", "scipy"}),
    "executors": ({"machines", "planner"}, {"jax"}),
    "_tune": (
        {"_files", "_warn", "machines", "planner", "executors"},
        {"jax", "numpy"},
    ),
    "_plans": ({"planner", "executors"}, {"jax"}),
    "_watch": ({"_plans", "planner"}, {"jax"}),
    "_scan": (
        {"_plans", "_tune", "_watch", "executors", "machines", "planner"},
        {"jax", "numpy"},
    ),
    "_solve": ({"machines", "planner", "executors"}, {"jax", "numpy"}),
    "_selfcheck": ({"_scan", "_tune", "cells"}, {"jax"}),
    "_objects": (set(), {"jax"}),
    "_accelerate": ({"_objects", "planner", "_scan"}, {"jax", "numpy"}),
    "_advise": ({"_scan", "cells", "machines", "planner"}, {"jax"}),
    "cells": (set(), {"jax"}),
    "layers": ({"_scan", "_warn", "cells", "machines"}, {"jax"}),
    "nnx": ({"cells", "layers"}, {"jax", "flax"}),
    "linen": ({"cells", "layers"}, {"jax", "flax"}),
    "training": (
        {"_files", "_scan", "cells", "machines", "nnx", "planner"},
        {
            *(
                "jax",
                "filelock",
                "flax",
                "matplotlib",
                "numpy",
                "optax",
                "orbax",
                "rich",
            ),
            "tensorboardX",
        },
    ),
    "interop": ({"_files", "cells", "nnx"}, {"jax", "flax", "numpy", "safetensors"}),
    "serving": (
        {"_files", "cells", "interop", "nnx", "planner"},
        {"jax", "flax", "numpy", "onnx"},
    ),
    "__init__": (
        {
            *("_accelerate", "_advise", "_allocator", "_scan", "_selfcheck", "_solve"),
            *("cells", "interop", "linen", "machines", "nnx", "planner", "serving"),
            *("_watch", "training"),
        },
        set(),
    ),
    "_commands": (
        {"_advise", "_files", "_scan", "cells", "machines", "serving", "training"},
        {"jax", "flax", "numpy", "rich"},
    ),
    "__main__": ({"__init__", "_commands", "training"}, {"jax", "flax", "rich"}),
}
# Folder of a room: the folders of that room that it may import.
FOLDERS = {
    "planner/ir": set(),
    "planner/passes": {"ir"},
    "planner/motion": {"ir", "passes"},
    "planner/parallel": {"ir"},
    "planner/derivative": {"ir", "motion", "passes"},
    "planner/report": {"ir", "parallel"},
    "executors/run": set(),
    "executors/kernels": {"run"},
    "executors/gpu": {"kernels"},
    "executors/parallel": set(),
    "serving/_onnx": set(),
}
# Import names and distributions that have different names.
DISTRIBUTIONS = {"orbax": "orbax-checkpoint"}
# Modules whose names are public.
PUBLIC_MODULES = [
    *("scanrnn", "scanrnn.cells", "scanrnn.nnx", "scanrnn.linen", "scanrnn.interop"),
    *("scanrnn.serving", "scanrnn.training"),
]


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path):
    """All modules that a file imports, `from scanrnn import x` as `scanrnn.x`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "scanrnn":
                yield from (f"scanrnn.{alias.name}" for alias in node.names)
            else:
                yield node.module


def public_objects():
    """Every public function and class of the package, by its dotted name."""
    for module_name in PUBLIC_MODULES:
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            if not name.startswith("_") and callable(value):
                yield pytest.param(value, id=f"{module_name}.{name}")


def test_import_law_has_a_row_for_every_room():
    assert {room_of(path) for path in SOURCES} == set(ROOMS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_imports_only_what_its_room_may(path):
    room = room_of(path)
    rooms, libraries = ROOMS[room]
    for module in imported_modules(path):
        top, *rest = module.split(".")
        if top == "scanrnn":
            assert (rest[0] if rest else "__init__") in rooms | {room}, module
        elif top not in sys.stdlib_module_names:
            assert top in libraries, module


def test_folder_law_has_a_row_for_every_folder():
    found = {path.parent.relative_to(PACKAGE) for path in SOURCES}
    assert {str(folder) for folder in found if len(folder.parts) > 1} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_imports_only_what_it_may(folder):
    room, own = folder.split("/")
    start = f"scanrnn.{room}."
    modules = {
        m for path in (PACKAGE / folder).glob("*.py") for m in imported_modules(path)
    }
    used = {m.removeprefix(start).split(".")[0] for m in modules if m.startswith(start)}
    folders = {name.split("/")[1] for name in FOLDERS if name.startswith(room)}
    assert used & folders <= FOLDERS[folder] | {own}


def test_the_makefile_has_each_target_once():
    """For a second recipe, `make` only warns, and uses that one."""
    done = subprocess.run(
        ["make", "-n", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_every_library_of_the_package_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"].values()
    declared = sum(optional, project["dependencies"])
    names = {re.split(r"[<>=\[ ]", line)[0] for line in declared}
    libraries = set().union(*(libraries for _, libraries in ROOMS.values()))
    assert {DISTRIBUTIONS.get(name, name) for name in libraries} <= names


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_is_short_and_so_are_its_functions(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.body[0].lineno + 1
            if ast.get_docstring(node):
                lines = node.end_lineno - node.body[0].end_lineno
            assert lines <= 50, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_neither_prints_nor_configures_jax(path):
    if path.name == "__main__.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {"print", "jax.config.update"}


@pytest.mark.parametrize("value", list(public_objects()))
def test_public_name_is_documented(value):
    doc = inspect.getdoc(value) or ""
    # A record needs no example: its fields are enough.
    if inspect.isclass(value) and "Attributes:" in doc:
        return
    signature = inspect.signature(value)
    wanted = {"Example:", ">>> "}
    if signature.parameters:
        wanted.add("Args:")
    if inspect.isfunction(value) and signature.return_annotation is not None:
        wanted.add("Yields:" if inspect.isgeneratorfunction(value) else "Returns:")
    assert {section for section in wanted if section not in doc} == set()


@pytest.mark.parametrize("file", ONE_IN)
def test_what_is_partly_slow_is_a_test(file):
    tree = ast.parse((ROOT / "tests" / file).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(ONE_IN[file]) <= names


def test_version_is_written_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "scanrnn/__init__.py"
    holders = [path for path in SOURCES if scanrnn.__version__ in path.read_text()]
    assert holders == [PACKAGE / "__init__.py"]


def test_changelog_starts_with_what_is_unreleased():
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    sections = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert sections <= {
        "Added",
        "Changed",
        "Deprecated",
        "Removed",
        "Fixed",
        "Security",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_python_example_of_a_page_is_a_doctest(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    for block in blocks:
        assert block.startswith(">>> "), block


def anchors_of(page):
    """The anchors in a page, to which links can lead."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_of_a_page_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)]*)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link
