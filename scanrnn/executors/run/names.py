"""Values by variable, and what JAX keeps of a program."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import jax

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import Graph, struct
from scanrnn.planner.motion.over_time import checkpointed, keep_inputs


def named(names: Iterable[Any], values: Iterable) -> OrderedDict[Any, Any]:
    """Values by variable, as a tree for JAX: it would sort the keys of a plain dict."""
    return OrderedDict(zip(names, values, strict=True))


def types_of(graph: Graph, length: Any) -> tuple:
    """The types of a loop's results: its final carry, and its ys at all steps."""
    rows = (jax.typeof(struct(v, length)) for v in graph.ys)
    return *map(ops.aval, graph.carry), *rows


def typed(results: Iterable, atoms: Iterable) -> list:
    """Results, each of which is weakly typed if and only if its atom is."""

    def one(found, atom):
        weak = ops.is_weak(atom)
        same = jax.typeof(found).weak_type == weak
        return found if same else compat.with_weak_type(found, weak)

    return [one(*pair) for pair in zip(results, atoms, strict=True)]


def is_divided(tree: Any) -> bool:
    """Whether, by their types, devices hold parts of arrays or different arrays."""
    return any(ops.is_split(jax.typeof(a)) for a in jax.tree.leaves(tree))


def remembering_inputs(f, residuals: str):
    """Keep only the inputs of `f` for its transpose, unless everything is kept."""
    return f if residuals == "everything" else checkpointed(f, keep_inputs)
