"""A row in a process of its own: compilers read some settings once."""

import json
import os
import subprocess
import sys
import tempfile

from benchmarks.compiled.workers import ROOT


def record(module: str, number: int, environment, limit: float) -> dict:
    """What `python -m module --row NUMBER --folder FOLDER` prints in its last line.

    Args:
      module: what runs the row.
      number: the number of the row.
      environment: `environment(folder)` are the variables that it needs, given the
        folder that it may write to.
      limit: seconds that it may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", module, "--row", str(number), "--folder", folder]
        try:
            done = subprocess.run(
                call, cwd=ROOT, env=os.environ | environment(folder),
                capture_output=True, text=True, timeout=limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"over {limit:.0f} s"}
    lines = done.stdout.strip().splitlines() or [""]
    if done.returncode or not lines[-1].startswith("{"):
        words = done.stderr.strip().splitlines() or ["without a word"]
        named = [w for w in words if "Error" in w] or words
        return {"error": named[-1][:300]}
    return json.loads(lines[-1])
