"""Compute products of a loop with the features first: `(W.T @ h.T).T` for `h @ W`.

XLA for CPU multiplies a large matrix by a small batch faster if the matrix is on the
left. The matrix is transposed once, before the loop. Either the whole loop lies
features first (`transposed.py`), or the batch and the result of a product are
transposed at every step.
"""

from __future__ import annotations

import dataclasses

from jax.extend.core import Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.gemm import on_the_left, transposes
from scanrnn.planner.ir.graph import Graph
from scanrnn.planner.ir.retrace import retrace
from scanrnn.planner.rule_groups import FeatureRules
from scanrnn.planner.rules import Rules


def features_first(graph: Graph, rules: Rules) -> tuple[Graph, dict[Var, Var]]:
    """The graph with its products by large matrices in the form `(W.T @ h.T).T`.

    Also returns, for each new weight, the matrix that it is the transpose of.
    """
    first = rules.features_first
    if first is None:
        return graph, {}
    sides = {eqn: _side(eqn, graph, first, first.batch) for eqn in graph.eqns}
    sides = {eqn: side for eqn, side in sides.items() if side is not None}
    # A matrix on the left is contracted along its rows, so some need a transpose.
    columns = [(e.invars[i], ops.contracted_axis(e, i)) for e, i in sides.items()]
    transposed = transposes(v for v, axis in columns if axis == 0)

    def rule(eqn, env):
        side = sides[eqn]
        matrix, data = eqn.invars[side], env.read(eqn.invars[1 - side])
        left = transposed[matrix] if ops.contracted_axis(eqn, side) == 0 else matrix
        right = data.T if ops.contracted_axis(eqn, 1 - side) == 1 else data
        out = on_the_left(eqn, side, env.read(left), right)
        return [out.T if side == 1 else out]

    if not sides:
        return graph, {}
    wide = (*graph.weights, *transposed.values())
    wide = dataclasses.replace(graph, weights=wide)
    made, consts = retrace(wide, rule, sides)
    sources = {name: v for v, name in transposed.items()}
    return (graph, {}) if consts else (made, sources)


def is_features_first(graph: Graph, rules: Rules) -> bool:
    """Whether a whole loop should lie features first: if one of its products should."""
    first = rules.features_first
    if first is None or first.loop is None:
        return False
    return _has_one(graph, first, first.loop)


def puts_features_first(graph: Graph, rules: Rules) -> bool:
    """Whether a whole loop, or one of its products, should lie features first."""
    first = rules.features_first
    products = first is not None and _has_one(graph, first, first.batch)
    return products or is_features_first(graph, rules)


def _has_one(graph, first: FeatureRules, batches) -> bool:
    sides = (_side(eqn, graph, first, batches) for eqn in graph.eqns)
    return any(side is not None for side in sides)


def _side(eqn, graph, first: FeatureRules, batches) -> int | None:
    """The side of a product on which a large matrix stands; None if there is none."""
    if eqn.primitive.name != "dot_general":
        return None
    for side, v in enumerate(eqn.invars):
        if v not in graph.weights or not ops.is_matrix_of(eqn, side):
            continue
        data = ops.aval(eqn.invars[1 - side])
        if data.ndim != 2 or ops.is_split(data) or not _measured(data, first):
            continue
        sizes = (*ops.aval(v).shape, *data.shape)
        batch = data.shape[1 - ops.contracted_axis(eqn, 1 - side)]
        if all(isinstance(size, int) for size in sizes):
            return side if _pays(v, batch, first, batches) else None
    return None


def _measured(data, first: FeatureRules) -> bool:
    return first.dtypes is None or str(data.dtype) in first.dtypes


def _pays(matrix, batch: int, first: FeatureRules, batches: tuple[int, int]) -> bool:
    fewest, most = batches
    large = ops.bytes_of(matrix) >= first.least
    long = min(ops.aval(matrix).shape) >= first.side
    return large and long and fewest <= batch <= most
