"""The pages match the code: names, files, commands, tables."""

import ast
import builtins
import doctest
import importlib
import inspect
import re
import shlex
import sys
import tarfile
import tomllib

import pytest

from benchmarks import gains
from scanrnn.__main__ import _parser
from tests.test_house import PAGES, PUBLIC_MODULES, ROOT

sys.path.append(str(ROOT / "docs"))
from site_tools import names, pages  # noqa: E402

WRITTEN = pages.pages()
page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def test_pages_of_names_are_written_anew():
    """If this fails, run: python docs/site_tools/pages.py."""
    found = {
        p for folder in ("api", "cells") for p in (ROOT / "docs" / folder).glob("*.md")
    }
    assert found == set(WRITTEN)
    assert {p for p in found if p.read_text() != WRITTEN[p]} == set()


@pytest.mark.parametrize("module", names.MODULES)
def test_every_public_name_is_described_once(module):
    text = "".join(WRITTEN.values())
    for name in names.public_names(module):
        home = pages.home_of(module, name)
        entry = (
            rf"^\.\. currentmodule:: {home}\n(?:(?!^```).*\n)*?\.\. [a-z:]+:: {name}$"
        )
        assert len(re.findall(entry, text, re.M)) == 1, name


@pytest.mark.parametrize("module", names.MODULES)
def test_public_names_are_those_of_all_or_of_what_is_imported_as_itself(module):
    """The generator of pages reads the source; this test reads the module."""
    here = importlib.import_module(module)
    found = set(names.public_names(module))
    if hasattr(here, "__all__"):
        assert found == set(here.__all__)
    elif module in PUBLIC_MODULES:
        alive = {n for n, v in vars(here).items() if callable(v) and n[0] != "_"}
        assert alive <= found


def docstrings(module):
    """The docstrings of a module's public names and of their public methods."""
    here = importlib.import_module(module)
    for name in names.public_names(module):
        value = getattr(here, name)
        if not callable(value):  # a table of values has the docstring of its type
            continue
        yield name, inspect.getdoc(value) or ""
        for key, method in vars(value).items() if inspect.isclass(value) else ():
            if key == "__call__" or key[0] != "_":
                yield f"{name}.{key}", inspect.getdoc(method) or ""


@pytest.mark.parametrize("module", names.MODULES)
def test_example_of_a_public_name_runs_when_it_is_copied(module):
    """It imports all that it uses, and nothing private."""
    found = False
    for name, text in docstrings(module):
        sources = [e.source for e in doctest.DocTestParser().get_examples(text)]
        tree = ast.parse("".join(sources))
        known, used = {*dir(builtins), "_"}, set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                known.add(node.name)
            elif isinstance(node, ast.arg):
                known.add(node.arg)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                parts = getattr(node, "module", None) or node.names[0].name
                assert "._" not in parts, name
                known |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        assert used <= known, name
        found |= bool(sources)
    assert found


def test_readme_is_of_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", gains.PAGES, ids=lambda p: p.name)
def test_table_of_gains_is_that_of_the_results(page):
    """If this fails, run: python -m benchmarks.gains."""
    text = page.read_text()
    assert gains.put(gains.table(gains.gains()), text) == text


def test_page_of_benchmarks_says_what_the_results_say():
    """Else: python -m benchmarks.gains."""
    page = gains.BESIDE.read_text()
    assert gains.put(gains.text_beside(), page) == page


def test_table_of_gains_has_a_place_on_its_pages():
    with pytest.raises(ValueError, match="found no lines '<!-- written by"):
        gains.put("a table", "a page")


def test_chart_of_gains_is_drawn(tmp_path):
    gains.draw(gains.gains(), tmp_path / "gains.png")
    assert (tmp_path / "gains.png").stat().st_size > 1000


@page
def test_files_that_a_page_names_are_there(page):
    named = re.findall(r"`([\w/]+/[\w/.]*\.(?:py|json|md|toml))`", page.read_text())
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "scanrnn" / name).exists(), name


@page
def test_commands_of_a_page_are_understood(page):
    lines = re.findall(r"^python -m scanrnn (.*)$", page.read_text(), re.M)
    for line in lines:
        _parser().parse_args(shlex.split(line))


@page
def test_extras_of_a_page_are_declared(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r'pip install "\.\[([\w,]+)\]"', page.read_text()):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_source_distribution_has_pages_notebooks_and_results(tmp_path):
    sdist = pytest.importorskip("hatchling.builders.sdist")
    (path,) = sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        *("README.md", "CITATION.cff", "docs/conf.py", "docs/index.md"),
        *("notebooks/01_quickstart.ipynb", "benchmarks/results/compiled.json"),
        *("scanrnn/py.typed", "tests/walks.py"),
    } <= held


def test_project_says_where_it_lives():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"Homepage", "Documentation", "Issues", "Changelog"} <= set(project["urls"])
    assert all(url.startswith("https://") for url in project["urls"].values())
