"""The blocks of a page work if a new user copies them."""

import pytest

from tests.walks import ROOT, blocks, copied, walk

WALKS = {
    "a layer in an existing Flax model": "docs/start/layer_in_flax.md",
    "a cell of one's own, with its plan": "docs/start/invent_a_cell.md",
    "an exported ONNX file": "docs/start/export_onnx.md",
    "the step from the front page": "docs/index.md",
}


def test_copied_block_has_neither_prompts_nor_outputs():
    block = ">>> def f(x):\n...     return x\n>>> f(2)\n2\n\n"
    assert copied(block) == "def f(x):\n    return x\nf(2)\n"
    assert copied("make demo\n") == "make demo\n"


@pytest.mark.parametrize("page", [*WALKS.values(), "README.md"])
def test_page_of_a_walk_has_blocks(page):
    assert "python" in {kind for kind, _ in blocks(ROOT / page)}


@pytest.mark.slow
def test_pages_run_block_by_block(tmp_path):
    """One process runs them all: to import the libraries takes most of the time."""
    walk(tmp_path, *(ROOT / page for page in WALKS.values()))
    assert len([*tmp_path.glob("copied_*.py")]) == len(WALKS)


# This page trains for half a minute, as it says, then compares plans and samples.
@pytest.mark.slow
def test_readme_leads_to_a_model_trained_on_a_text_of_ones_own(tmp_path):
    printed = walk(tmp_path, ROOT / "README.md")
    assert printed.rstrip("\n").rpartition("\n")[0]
    assert "bits per character on held-out text" in printed
    names = {path.name for path in (tmp_path / "runs" / "my").iterdir()}
    assert {"log.jsonl", "sample.txt", "plan.txt"} <= names
