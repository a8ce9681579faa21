"""The errors of gradients, once for each length: they are the same in every run."""

import pytest

from benchmarks import precision


@pytest.mark.parametrize("T", precision.STEPS)
def test_precision(benchmark, T, rows):
    benchmark.group = "precision"
    rows.records.append(benchmark.pedantic(precision.record, args=(T,)))
