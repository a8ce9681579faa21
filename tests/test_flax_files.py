"""Flax's own tests and its example, with our layers in place of Flax's.

The files are from the source distribution of the installed version.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
# For each kind of Flax: the file; the names that are ours; the tests that are known to
# fail, as the page for users of Flax says; and the least number of tests.
FILES = {
    "nnx": (
        "tests/nnx/nn/recurrent_test.py",
        ["RNN", "LSTMCell", "OptimizedLSTMCell", "GRUCell"],
        set(),
        20,
    ),
    "linen": (
        "tests/linen/linen_recurrent_test.py",
        ["RNN", "Bidirectional", "LSTMCell", "ConvLSTMCell"],
        {"test_numerical_equivalence_with_mask"},
        18,
    ),
}
EXAMPLE = "examples/seq2seq"
TRAINING = "--hidden_size=32 --batch_size=32 --num_train_steps=60".split()
TRAINING += ["--decode_frequency=1", "--workdir=."]
# The example logs with a library that nothing else needs.
WRITER = """
import json, pathlib, random
random.seed(0)  # of the sums that are drawn

class create_default_writer:
    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "losses.json"
        self.losses = []

    def write_scalars(self, step, metrics):
        self.losses.append(float(metrics["loss"]))
        self.path.write_text(json.dumps(self.losses))
"""


def run(*command, folder=ROOT):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="session")
def flax_files(tmp_path_factory):
    """The folder with the files of Flax's source distribution."""
    folder = tmp_path_factory.mktemp("flax")
    version = metadata.version("flax")
    options = ["--no-deps", "--no-binary", ":all:", "--dest", folder]
    done = run("-m", "pip", "download", f"flax=={version}", *options)
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        pytest.skip(f"no source distribution of flax {version}: {reason}")
    (archive,) = folder.glob("flax-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / f"flax-{version}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_flax_tests_pass_with_our_layers(kind, flax_files):
    name, ours, differ, least = FILES[kind]
    path = flax_files / name
    for one in ours:
        assert re.search(rf"\b(nn|nnx|linen)\.{one}\b", path.read_text()), one
    # That some fail with our layers says something where they pass with Flax's.
    for names, expected in (*([([], set())] if differ else []), (ours, differ)):
        done = run(ROOT / "tests/flax_files.py", path, kind, *names)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["tests"] >= least
        assert set(found["failed"]) == expected, found["failed"]


def example(flax_files, folder, ours):
    """The folder of the example, with or without our layer."""
    folder.mkdir()
    for path in (flax_files / EXAMPLE).glob("*.py"):
        text = path.read_text()
        if ours and path.name == "models.py":
            text, changes = re.subn(r"\bnn\.RNN\(", "RNN(", text)
            assert changes == 2
            line = "from scanrnn.linen import RNN\n"
            text = text.replace("import jax\n", f"import jax\n{line}", 1)
        (folder / path.name).write_text(text)
    (folder / "clu").mkdir()
    (folder / "clu/__init__.py").write_text("")
    (folder / "clu/metric_writers.py").write_text(WRITER)
    return folder


@pytest.mark.slow
def test_flax_example_trains_with_one_import_changed(flax_files, tmp_path):
    """The decoder returns a pair, and starts with the carry of the encoder."""
    theirs, mine = (example(flax_files, tmp_path / str(own), own) for own in (0, 1))
    # It trains and decodes, as the test beside it does for one step.
    for folder in (theirs, mine):
        done = run("train.py", *TRAINING, folder=folder)
        assert done.returncode == 0, done.stderr
    theirs, mine = (json.loads((f / "losses.json").read_text()) for f in (theirs, mine))
    # Tokens of the decoder are drawn with other keys, so losses differ a little.
    np.testing.assert_allclose(mine, theirs, rtol=0.05)
    assert np.mean(mine[-5:]) < 0.8 * np.mean(mine[:5])
