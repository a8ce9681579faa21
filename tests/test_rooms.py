"""What `import scanrnn` brings, and what it leaves for later."""

import subprocess
import sys

import pytest

import scanrnn

LAZY = ("interop", "linen", "nnx", "serving", "training")


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_loads_no_library_but_jax():
    """Flax, optax and Orbax take several times as long as all the rest."""
    run(
        "import sys, scanrnn\n"
        "libraries = {'flax', 'optax', 'orbax', 'rich', 'matplotlib', 'onnx'}\n"
        "assert not libraries & set(sys.modules), libraries & set(sys.modules)\n"
        f"assert set({LAZY}) <= set(dir(scanrnn))\n"
    )


@pytest.mark.parametrize("room", LAZY)
def test_room_is_an_attribute_of_the_package(room):
    assert getattr(scanrnn, room) is sys.modules[f"scanrnn.{room}"]


def test_room_is_there_after_import_scanrnn_alone():
    run("import scanrnn; scanrnn.training.Precision; scanrnn.nnx.LSTM")


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'scanrnn' has no attribute 'lstm'"):
        scanrnn.lstm  # noqa: B018
