"""Flax NNX objects among the arguments of a function: what it writes into them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax


def values(tree: Any) -> dict[tuple, Any]:
    """The arrays of all NNX variables in a tree of arguments, by their paths."""
    return {path: variable.get_raw_value() for path, variable in _variables(tree)}


def changed(tree: Any, before: Mapping[tuple, Any]) -> dict[tuple, Any]:
    """The arrays among `values` that are others than before.

    Raises:
      ValueError: if there is a new variable.
    """
    found = values(tree)
    for path in found:
        if path not in before:
            name = ".".join(map(str, path[1:]))
            raise ValueError(
                f"accelerate: fn makes the variable {name} of an NNX module, which "
                "would be lost; make it before, or return it"
            )
    return {path: v for path, v in found.items() if v is not before[path]}


def write(tree: Any, new: Mapping[tuple, Any]) -> None:
    """Give NNX variables in a tree of arguments new arrays, by their paths."""
    found = dict(_variables(tree)) if new else {}
    for path, value in new.items():
        found[path].set_raw_value(value)


def _variables(tree: Any) -> Iterator[tuple[tuple, Any]]:
    # Flax is slow to import, and if nobody has imported it there are no such objects.
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    kinds = nnx.Pytree, nnx.Variable
    objects = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, kinds))
    for i, one in enumerate(objects):
        if isinstance(one, nnx.Variable):
            yield (i,), one
        elif isinstance(one, nnx.Pytree):
            for path, node in nnx.iter_graph(one):
                if isinstance(node, nnx.Variable):
                    yield (i, *path), node
