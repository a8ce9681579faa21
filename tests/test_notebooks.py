"""Every notebook is in step with its text, is committed without outputs, and runs."""

import os
import pathlib

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parent.parent / "notebooks"
# What each notebook must show: text that it prints, and how many plots.
SHOWS = {
    "01_quickstart": (("lax.scan: loss", "Plan:", "times as fast"), 1),
    "02_what_the_planner_does": (
        ("by lax.scan as it stands", "Plan: 20 steps, 1 GEMM", "--- tpu v5e", "pins"),
        4,
    ),
    "03_write_a_cell": (
        ("by differences", "Plan: 12 steps", "bits per character at the end"),
        2,
    ),
    "04_sequences": (
        (
            "lengths: as",
            "mask: as",
            "packed: the same",
            "bidirectional: as",
            "stack: as",
        ),
        2,
    ),
    "05_training_that_does_not_break": (
        ("clipped to 1.0", "2 of 20 steps were skipped", "saturated gates"),
        6,
    ),
    "06_forecasting_and_streaming": (
        ("chunks and whole", "goes on bit for bit: True", "onnxruntime and JAX differ"),
        3,
    ),
    "07_from_torch": (
        ("16 arrays, such as", "round trip exact to the bit: True", "by chance"),
        2,
    ),
    "08_parallel_in_time": (
        ("run by: associative", "program: 0", "within the bound: True", "iterations"),
        2,
    ),
}


def _read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_notebooks_are_all_in_the_table():
    for suffix in ("ipynb", "py"):
        assert {path.stem for path in FOLDER.glob(f"*.{suffix}")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_notebook_and_its_text_are_in_step(name):
    notebook, text = _read(name), jupytext.read(FOLDER / f"{name}.py")
    cells = [
        [(cell.cell_type, cell.source) for cell in form.cells]
        for form in (notebook, text)
    ]
    assert cells[0] == cells[1], "run: jupytext --sync notebooks/*.ipynb"


@pytest.mark.parametrize("name", SHOWS)
def test_notebook_is_kept_without_outputs(name):
    for cell in _read(name).cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None


# The only test that starts a kernel: everything that needs a run is checked here.
@pytest.mark.filterwarnings("default")  # of the Jupyter machinery, not ours
@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith("01") else pytest.param(name, marks=pytest.mark.slow)
        for name in SHOWS
    ],
)
def test_notebook_runs_and_shows_what_it_promises(name, monkeypatch, tmp_path):
    monkeypatch.setenv("SCANRNN_FAST", "1")
    paths = (str(FOLDER.parent), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    notebook = _read(name)
    # Runs anywhere: not only in the folder of the repository.
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=60, resources=resources).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    plots = [o for o in outputs if "image/png" in o.get("data", {})]
    expected, count = SHOWS[name]
    for text in expected:
        assert text in printed
    assert len(plots) == count
    assert "Warning" not in printed
