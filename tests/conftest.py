"""Settings for the tests in this folder, not for doctests."""

import dataclasses

import pytest

from scanrnn import _plans
from scanrnn.executors import _xla
from tests import tiers


@pytest.fixture(autouse=True, scope="module")
def _small_steps_are_planned():
    """Plan small steps too: tests use small arrays, so that oracles are exact."""
    usual = _xla.CPU
    _plans._of_structures.clear()
    _xla.CPU = dataclasses.replace(usual, least_work=0, least_row_work=0)
    yield
    _plans._of_structures.clear()
    _xla.CPU = usual


@pytest.fixture(autouse=True)
def _plans_made_by_replaced_code_are_forgotten(request):
    """Code that a test replaces may decide about plans, which equal steps share."""
    replaces = "monkeypatch" in request.fixturenames
    if replaces:
        _plans._of_structures.clear()
    yield
    if replaces:
        _plans._of_structures.clear()


def pytest_collection_modifyitems(items):
    tiers.mark_slow(items)
