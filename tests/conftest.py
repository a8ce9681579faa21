"""Settings for the tests in this folder, not for doctests."""

import pytest

from scanrnn.planner import ops, plan


@pytest.fixture(autouse=True, scope="module")
def _small_steps_run_as_large_ones():
    """Tests are about plans, on arrays small enough for exact oracles."""
    kept = plan.TINY, ops.LARGE_ROW
    plan.TINY = ops.LARGE_ROW = 0
    yield
    plan.TINY, ops.LARGE_ROW = kept
