"""Settings for the tests in this folder, not for doctests."""

import dataclasses

import pytest

from scanrnn.executors import _xla
from tests import tiers


@pytest.fixture(autouse=True, scope="module")
def _small_steps_are_planned():
    """Tests are about plans, on arrays small enough for exact oracles."""
    usual = _xla.CPU
    _xla.CPU = dataclasses.replace(usual, least_work=0)
    yield
    _xla.CPU = usual


def pytest_collection_modifyitems(items):
    tiers.mark_slow(items)
