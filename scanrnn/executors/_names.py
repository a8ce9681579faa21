"""Values by name, and the flat lists of them that JAX takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
from jax.extend.core import Var

from scanrnn.planner import ops


def named(names: Iterable[Any], values: Iterable) -> dict[Var, Any]:
    """Values by variable."""
    return dict(zip(names, values, strict=True))


def values(known: Mapping[Var, Any]) -> list:
    """The values alone, in order."""
    return list(known.values())


def names_of(groups: Iterable[Iterable[Var]]) -> tuple[tuple[Var, ...], ...]:
    """The names in groups of values by variable."""
    return tuple(map(tuple, groups))


def flat(groups: Iterable[Mapping[Var, Any]]) -> list:
    """The values of all groups, in order."""
    return [value for group in groups for value in group.values()]


def grouped(names: Iterable[Iterable[Var]], values: Iterable) -> list[dict[Var, Any]]:
    """The groups whose values, in order, these are."""
    found = iter(values)
    return [{v: next(found) for v in group} for group in names]


def split(arrays: Iterable) -> bool:
    """Whether a type says that devices hold parts of an array, or different ones."""
    return any(ops.is_split(jax.typeof(a)) for a in arrays)


def remembering_inputs(f, residuals: str):
    """Keep only the inputs of `f` for its transpose, unless everything is kept."""
    if residuals == "everything":
        return f
    return jax.checkpoint(f, prevent_cse=False, policy=ops.keep_inputs)
