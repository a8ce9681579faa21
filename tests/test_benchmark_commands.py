"""Commands that the page of the benchmarks gives do what it says they do."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# One benchmark, for two rounds.
TINY = ["-k", "quick-elman and scanrnn-forward", "--budget", "0", "--least", "2"]
TINY += ["-p", "tests.small_limits"]


def _run(command, folder):
    """Runs a line of the page that starts with `pytest`, on one benchmark."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "XLA_FLAGS" and not name.startswith("PYTEST_")
    }
    environment["PYTHONPATH"] = str(ROOT)
    _, where, *words = command.split()
    # Runs are saved in the folder from which the command is run.
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(ROOT / where), *words, *TINY],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


@pytest.mark.slow
def test_commands_of_pytest_benchmark_compare_two_runs(tmp_path):
    page = (ROOT / "benchmarks" / "README.md").read_text()
    commands = re.findall(r"^    (pytest benchmarks .*)$", page, re.M)
    assert len(commands) == 2
    first, second = (_run(command, tmp_path) for command in commands)
    assert "Saved benchmark data" in first and "(NOW)" not in first
    assert "(NOW)" in second and "_before)" in second
