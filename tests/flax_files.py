"""A test file of Flax, run with modules of ours in the place of Flax's own.

`python tests/flax_files.py FILE KIND NAME...` puts `scanrnn.KIND.NAME` in the place of
`flax.KIND.NAME`, for every name, runs the tests of the file, and prints as JSON how
many there are and which of them failed, and how.
"""

import importlib
import importlib.util
import json
import sys
import unittest


def run(path, kind, names):
    """How many tests there are, and how those ended that failed, by name."""
    for name in names:
        ours = getattr(importlib.import_module(f"scanrnn.{kind}"), name)
        setattr(importlib.import_module(f"flax.{kind}"), name, ours)
    spec = importlib.util.spec_from_file_location("file_of_flax", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    failed = {
        test.id().split(".")[-1]: text for test, text in result.failures + result.errors
    }
    return {"tests": result.testsRun, "failed": failed}


if __name__ == "__main__":
    _, path, kind, *names = sys.argv
    sys.argv[1:] = []  # the file may read what it takes for its own flags
    print(json.dumps(run(path, kind, names)))
