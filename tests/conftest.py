"""Settings for the tests in this folder, not for doctests."""

import pytest

from scanrnn.planner import plan


@pytest.fixture(autouse=True, scope="module")
def _small_steps_are_planned():
    """Tests are about plans, on arrays small enough for exact oracles."""
    tiny, plan.TINY = plan.TINY, 0
    yield
    plan.TINY = tiny
