"""Worker processes, each of which compiles for one machine; see `worker`."""

import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile

from benchmarks.compiled import targets
from benchmarks.compiled.measure import Row

# The checkout that this file is in, and its package.
ROOT = pathlib.Path(__file__).parents[2]


class Worker:
    """Compiles for one machine in a process of its own; a dead process is replaced.

    `module` is what runs there: it answers lines of JSON, as `worker` does.
    """

    def __init__(
        self,
        machine: str,
        limit: float = 600.0,
        module: str = "benchmarks.compiled.worker",
    ):
        self._machine, self._limit, self._module = machine, limit, module
        self._process = None

    def measure(self, row: Row, **request) -> dict:
        """The record of a row, or a record with an `error`; see `worker`."""
        process = self._process or self._start()
        line = json.dumps({"row": row.as_json(), **request})
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass
        ready, _, _ = select.select([process.stdout], [], [], self._limit)
        answer = process.stdout.readline() if ready else b""
        if answer:
            return json.loads(answer)
        why = "the compiler ended its process" if ready else f"over {self._limit:g} s"
        error = f"{why}: {self._last_words()}" if ready else why
        self.close()
        return row.as_json() | {"error": error}

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # waits, and closes the pipes
            self._process = None
            self._errors.close()

    def _start(self):
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            cwd=ROOT,
            env=os.environ | targets.environment(self._machine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        return self._process

    def _last_words(self):
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "without a word"
