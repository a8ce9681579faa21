"""A program is the same in every process. Otherwise a cache on disk cannot find it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def digests(waste):
    command = [sys.executable, "-m", "tests.lowered", str(waste)]
    environment = os.environ | {"PYTHONHASHSEED": str(waste)}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_programs_are_lowered_alike_in_every_process():
    found = digests(0)
    assert len(found) == 6 and found == digests(100_001)
