"""Settings for the tests in this folder, not for doctests."""

import pytest

from scanrnn.machines import Machine


@pytest.fixture(autouse=True, scope="module")
def _small_steps_are_planned():
    """Tests are about plans, on arrays small enough for exact oracles."""
    small, Machine.small = Machine.small, 0
    yield
    Machine.small = small
