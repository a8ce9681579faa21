"""Runs notebooks at full size and keeps their outputs: `make notebooks`.

Each is read from its `.py`, run in an empty folder, and written to its `.ipynb` with
the outputs and a hash of the code that made them. Where the code is still that of the
outputs, only the text is brought up to date; numbers force a run: `make notebooks
ARGS="01 04"`.
"""

import base64
import hashlib
import io
import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The notebooks, in order."""
    return sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))


def hash_of_code(notebook: nbformat.NotebookNode) -> str:
    """What the outputs were made by: every code cell, in order."""
    code = "\0".join(cell.source for cell in code_of(notebook))
    return hashlib.sha256(code.encode()).hexdigest()


def from_text(name: str) -> nbformat.NotebookNode:
    """The notebook of a `.py`, with metadata that only its text decides."""
    notebook = jupytext.read(FOLDER / f"{name}.py")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}
    notebook.metadata = nbformat.from_dict(
        {
            "jupytext": {"formats": "ipynb,py:percent"},
            "kernelspec": notebook.metadata["kernelspec"],
            "language_info": {"name": "python"},
        }
    )
    return notebook


def run(notebook: nbformat.NotebookNode, folder: str, timeout: int, **env: str) -> None:
    """Runs every cell in a folder; the outputs are then in the cells."""
    paths = (str(FOLDER.parent), os.environ.get("PYTHONPATH", ""))
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    about = dict(notebook.metadata["language_info"])
    NotebookClient(
        notebook,
        timeout=timeout,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    ).execute(env={**os.environ, **env})
    notebook.metadata["language_info"] = about  # without the version of this Python
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = smaller(data["image/png"])


def smaller(png: str) -> str:
    """The same picture with 128 colours, about a third as large."""
    picture, into = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
    picture.convert("RGB").quantize(128).save(into, "PNG", optimize=True)
    return base64.b64encode(into.getvalue()).decode()


def code_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def main(forced: list[str]) -> None:
    """Runs the notebooks whose code changed, or whose names begin with one of these."""
    for name in names():
        path, notebook = FOLDER / f"{name}.ipynb", from_text(name)
        made = hash_of_code(notebook)
        old = nbformat.read(path, as_version=4) if path.exists() else notebook
        if forced and not name.startswith(tuple(forced)):
            continue
        if not forced and old.metadata.get("executed") == {"sha256": made}:
            for cell, before in zip(code_of(notebook), code_of(old), strict=True):
                cell.outputs = before.outputs
                cell.execution_count = before.execution_count
        else:
            with tempfile.TemporaryDirectory() as folder:
                run(notebook, folder, timeout=1800)
        notebook.metadata["executed"] = {"sha256": made}
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
