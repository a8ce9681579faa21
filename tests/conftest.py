"""Settings for the tests in this folder, not for doctests."""

import dataclasses

import pytest

from scanrnn.executors import _xla
from tests import tiers


@pytest.fixture(autouse=True, scope="module")
def _small_steps_are_planned():
    """Plan small steps too: tests use small arrays, so that oracles are exact."""
    usual = _xla.CPU
    _xla.CPU = dataclasses.replace(usual, least_work=0, least_row_work=0)
    yield
    _xla.CPU = usual


def pytest_collection_modifyitems(items):
    tiers.mark_slow(items)
