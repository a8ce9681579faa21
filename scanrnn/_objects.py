"""Flax NNX objects among the arguments of a function: copies, and what changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax


def copied(tree: Any) -> Any:
    """The tree with new NNX objects, which share what the given ones share.

    Lists and dicts are new, too. The arrays are the same.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_object)
    found = list(filter(_is_object, leaves))
    if found:
        new = iter(_nnx().clone(found, graph=True))
        leaves = [next(new) if _is_object(leaf) else leaf for leaf in leaves]
    return structure.unflatten(leaves)


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
    """The variables of all NNX objects, each once, and the first path to it."""
    objects = list(filter(_is_object, jax.tree.leaves(tree, is_leaf=_is_object)))
    if objects:
        for path, node in _nnx().iter_graph(objects):
            if isinstance(node, _nnx().Variable):
                yield path, node


def _is_object(leaf: Any) -> bool:
    return _nnx() is not None and isinstance(leaf, _nnx().Pytree | _nnx().Variable)


def _nnx() -> Any:
    # Flax is slow to import, and if nobody has imported it there are no such objects.
    return sys.modules.get("flax.nnx")
