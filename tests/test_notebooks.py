"""Every notebook matches its text, is committed with its outputs, and runs."""

import base64
import struct

import jupytext
import nbformat
import pytest

from notebooks import execute

# What each notebook must show: text that it prints, and how many plots.
SHOWS = {
    "01_quickstart": (("lax.scan: loss", "MB of temporary memory"), 1),
    "02_what_the_planner_does": (
        (
            "run by lax.scan unchanged",
            "Plan: 20 steps, 1 of 6 GEMMs",
            "--- tpu v5e",
            "row_tile",
        ),
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
        3,
    ),
    "05_training_that_does_not_break": (
        ("clipped to 0.1", "2 of 20 steps were skipped", "saturated gates"),
        6,
    ),
    "06_forecasting_and_streaming": (
        ("chunks and whole", "goes on bit for bit: True", "onnxruntime and JAX differ"),
        4,
    ),
    "07_from_torch": (
        ("16 arrays, such as", "round trip exact to the bit: True", "by chance"),
        1,
    ),
    "08_parallel_in_time": (
        ("run by: associative", "program: 0", "within the bound: True", "iterations"),
        3,
    ),
}


def _read(name):
    return nbformat.read(execute.FOLDER / f"{name}.ipynb", as_version=4)


def _outputs(notebook):
    return [out for cell in execute.code_of(notebook) for out in cell.outputs]


def _check_shown(name, outputs):
    """Check that the outputs have the promised plots and no errors."""
    assert not [o for o in outputs if o.output_type == "error"]
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    assert "Warning" not in printed
    pictures = [
        o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})
    ]
    assert len(pictures) == SHOWS[name][1]
    return printed, pictures


def test_notebooks_are_all_in_the_table():
    for suffix in ("ipynb", "py"):
        found = {path.stem for path in execute.FOLDER.glob(f"[0-9]*.{suffix}")}
        assert found == set(SHOWS) == set(execute.names())


@pytest.mark.parametrize("name", SHOWS)
def test_notebook_and_its_text_are_in_step(name):
    notebook, text = _read(name), jupytext.read(execute.FOLDER / f"{name}.py")
    cells = [
        [(cell.cell_type, cell.source) for cell in form.cells]
        for form in (notebook, text)
    ]
    assert cells[0] == cells[1], "run: make notebooks"


@pytest.mark.parametrize("name", SHOWS)
def test_notebook_asks_a_question_and_says_what_surprised(name):
    text = [cell.source for cell in _read(name).cells if cell.cell_type == "markdown"]
    assert text[0].startswith("# ") and text[0].count("**Question: ") == 1
    assert sum("\n## What is surprising\n" in f"\n{source}" for source in text) == 1


@pytest.mark.parametrize("name", SHOWS)
def test_notebook_has_the_outputs_of_its_code(name):
    notebook = _read(name)
    made = execute.hash_of_code(notebook)
    assert notebook.metadata["executed"] == {"sha256": made}, "run: make notebooks"
    cells = execute.code_of(notebook)
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))  # run once, from top to bottom
    _, pictures = _check_shown(name, _outputs(notebook))
    for picture in pictures:
        png = base64.b64decode(picture)
        width, height = struct.unpack(">II", png[16:24])
        assert width <= 1100 and height <= 800 and len(png) <= 60_000
    assert (execute.FOLDER / f"{name}.ipynb").stat().st_size <= 150_000


# The only test that starts a kernel: everything that needs a run is checked here.
@pytest.mark.filterwarnings("default")  # of the Jupyter machinery, not ours
@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS)
def test_notebook_runs_and_shows_what_it_promises(name, tmp_path):
    notebook = execute.from_text(name)
    # It runs in any folder, not only in that of the repository.
    execute.run(notebook, str(tmp_path), timeout=60, SCANRNN_FAST="1")
    printed, _ = _check_shown(name, _outputs(notebook))
    for text in SHOWS[name][0]:
        assert text in printed
