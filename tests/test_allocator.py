"""The allocator setting."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
import scanrnn

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(2**23, 1.0)  # 64 MiB, touched and freed
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = [faults(), faults()]
print(scanrnn.tune_allocator())
tuned = [faults(), faults()]
print(*plain, *tuned)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is on Linux")
def test_tune_allocator_keeps_pages_that_were_faulted_in():
    output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)
    took_effect, counts = output.splitlines()
    first, second, _, last = map(int, counts.split())
    # Without the call, each run faults its 64 MiB in again (in pages of any size).
    assert min(first, second) > 20
    assert (took_effect == "True") == (last <= 2)
