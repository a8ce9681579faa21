"""Run a test file of Flax, with our modules in place of Flax's own.

`python tests/flax_files.py FILE KIND NAME...` replaces `flax.KIND.NAME` by
`scanrnn.KIND.NAME`, for each name, and runs the tests of the file. It prints as JSON
the number of tests, and the names and errors of those that failed.
"""

import importlib
import importlib.util
import json
import sys
import unittest


def run(path, kind, names):
    """The number of tests, and the errors of failed tests by name."""
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
    sys.argv[1:] = []  # the file may read these as its own flags
    print(json.dumps(run(path, kind, names)))
