"""The same naive step under the package of an earlier commit: before beside after.

Both run in one process, in turns, so the earlier package needs a name of its own.
"""

import functools
import importlib
import io
import pathlib
import re
import subprocess
import sys
import tarfile

from benchmarks.contenders._base import Contender, JaxRunner
from benchmarks.contenders.lax_scan import naive

REPOSITORY = pathlib.Path(__file__).parents[2]
FOLDER = REPOSITORY / "build" / "commits"


def parse(spec: str) -> Contender:
    """`scanrnn.scan` as it was at a commit, such as `"293fdc4"`.

    Raises:
      ValueError: if the repository has no such commit.
    """
    package = _package(_full_name(spec))

    def setup(problem):
        return JaxRunner(problem, naive(problem, package().scan))

    return Contender(f"commit:{spec}", lambda case: None, setup)


def _full_name(spec):
    """The whole hash of a commit. Words such as `main` are none: they move."""
    if not re.fullmatch("[0-9a-f]{7,40}", spec):
        raise ValueError(f"commit:{spec}: expected 7 to 40 digits of a commit's hash")
    try:
        return _git("rev-parse", "--verify", f"{spec}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError:
        raise ValueError(f"commit:{spec}: this repository has no such commit") from None


def _package(commit):
    """A function that imports the package of a commit, once it is needed."""
    name = f"scanrnn_{commit[:12]}"

    @functools.cache
    def load():
        if not (FOLDER / name).exists():
            _write(commit, name)
        sys.path.append(str(FOLDER))
        return importlib.import_module(name)

    return load


def _write(commit, name):
    """Writes the package under a name of its own, which its imports use, too."""
    archive = tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "scanrnn")))
    archive.extractall(FOLDER / f"{name}.part", filter="data")
    root = FOLDER / f"{name}.part" / "scanrnn"
    for path in root.rglob("*.py"):
        path.write_text(re.sub(r"\bscanrnn\b", name, path.read_text()))
    root.rename(FOLDER / name)


def _git(*words):
    command = ["git", "-C", str(REPOSITORY), *words]
    return subprocess.run(command, check=True, capture_output=True).stdout
