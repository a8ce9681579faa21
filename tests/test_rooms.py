"""What `import scanrnn` imports at once, and what it imports later."""

import subprocess
import sys

import pytest

import scanrnn

LAZY = ("interop", "linen", "nnx", "serving", "training")


def test_import_loads_no_library_but_jax():
    """Importing Flax, optax and Orbax takes several times as long as all the rest."""
    code = f"""if True:
        import sys, scanrnn
        libraries = {{"flax", "optax", "orbax", "rich", "matplotlib", "onnx"}}
        assert not libraries & set(sys.modules), libraries & set(sys.modules)
        assert set({LAZY}) <= set(dir(scanrnn))
        assert "importlib" not in dir(scanrnn)
        scanrnn.training.Precision
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("room", LAZY)
def test_room_is_an_attribute_of_the_package(room):
    assert getattr(scanrnn, room) is sys.modules[f"scanrnn.{room}"]


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lstm'; cells are in"):
        scanrnn.lstm  # noqa: B018
    with pytest.raises(AttributeError, match="write scanrnn.cells.lstm"):
        scanrnn.cells.LSTM  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'best'; see dir"):
        scanrnn.cells.best  # noqa: B018
