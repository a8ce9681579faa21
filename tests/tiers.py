"""Which rows of a table run with the quick tests: the others are slow."""

from collections.abc import Iterable

import pytest


def one_in(count: int, values: Iterable, ids: Iterable[str] = ()) -> list:
    """Every so many-th value with the quick tests, all with the slow ones."""
    names = [*ids]
    return [
        pytest.param(
            value,
            id=names[i] if names else None,
            marks=[pytest.mark.slow] if i % count else [],
        )
        for i, value in enumerate(values)
    ]
