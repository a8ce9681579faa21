"""The errors of gradients, for each length once: every run gives the same errors."""

import pytest

from benchmarks import precision


@pytest.mark.parametrize("T", precision.STEPS)
def test_precision(benchmark, T, rows):
    benchmark.group = "precision"
    rows.records.append(benchmark.pedantic(precision.record, args=(T,)))
