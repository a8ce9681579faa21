"""Passes that bring different ways of writing the same thing to one form."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from scanrnn.planner import ops
from scanrnn.planner.graph import (
    CARRY,
    TIME,
    WEIGHTS,
    Graph,
    eval_eqn,
    retrace,
    variables,
)
from scanrnn.planner.rewrite import recurrent, var


def cancel_splits(graph: Graph) -> tuple[Graph, list]:
    """`split(concatenate(parts))` is `parts`, where the sizes agree."""
    producers = graph.producers()

    def rule(eqn, env):
        if eqn.primitive.name != "split":
            return None
        made = producers.get(var(eqn.invars[0]))
        if made is None or made.primitive.name != "concatenate":
            return None
        axis = eqn.params["axis"]
        sizes = tuple(ops.aval(a).shape[axis] for a in made.invars)
        if made.params["dimension"] != axis or sizes != tuple(eqn.params["sizes"]):
            return None
        return [env.read(a) for a in made.invars]

    return retrace(graph, rule)


def gather_slices(graph: Graph) -> tuple[Graph, list]:
    """Slices that together tile an array become one `split`.

    The transpose of a split is one concatenate; of slices, a sum of pads.
    """
    tiles: dict[JaxprEqn, tuple[list[JaxprEqn], int]] = {}
    for v, users in graph.consumers().items():
        slices = [u for u in users if u is not None and u.primitive.name == "slice"]
        axis = _tiled_axis(v, slices)
        if axis is not None:
            ordered = sorted(slices, key=lambda e: e.params["start_indices"][axis])
            tiles |= dict.fromkeys(slices, (ordered, axis))
    done: dict[JaxprEqn, object] = {}

    def rule(eqn, env):
        if eqn not in tiles:
            return None
        if eqn not in done:
            ordered, axis = tiles[eqn]
            sizes = [ops.aval(e.outvars[0]).shape[axis] for e in ordered]
            parts = lax.split(env.read(eqn.invars[0]), sizes, axis)
            done.update(zip(ordered, parts, strict=True))
        return [done[eqn]]

    return retrace(graph, rule)


def _tiled_axis(v, slices):
    """The one axis along which slices cover `v` without overlap, or None."""
    if len(slices) < 2 or any(e.params["strides"] is not None for e in slices):
        return None
    shape = v.aval.shape
    spans = [
        tuple(zip(e.params["start_indices"], e.params["limit_indices"], strict=True))
        for e in slices
    ]
    axes = {
        i
        for span in spans
        for i, (lo, hi) in enumerate(span)
        if (lo, hi) != (0, shape[i])
    }
    if len(axes) != 1 or len(set(spans)) != len(spans):
        return None
    (axis,) = axes
    edges = sorted(span[axis] for span in spans)
    ends = [0, *(hi for _, hi in edges)]
    starts = [lo for lo, _ in edges]
    return axis if starts == ends[:-1] and ends[-1] == shape[axis] else None


def push_splits(graph: Graph) -> tuple[Graph, list]:
    """`split(h @ U + x @ W)` becomes sums of pieces, `x @ W_i` among them.

    XLA for CPU is about five times slower on a loop body that takes several
    slices of one scanned array than on separate arrays, and a slice of `W` is
    free where a slice of `x @ W` for all steps is a copy.
    """
    trees = {
        eqn: _tree(eqn, graph) for eqn in graph.eqns if eqn.primitive.name == "split"
    }
    producers = graph.producers()
    bits = graph.depends()

    def rule(eqn, env):
        if not trees.get(eqn):
            return None
        axis, sizes = eqn.params["axis"], eqn.params["sizes"]
        done: dict = {}

        def pieces(atom) -> list:
            """The values of the pieces of `atom`."""
            if (
                var(atom) is None
                or atom.aval.ndim <= axis
                or atom.aval.shape[axis] == 1
            ):
                return [env.read(atom)] * len(sizes)
            if atom not in done:
                done[atom] = cut(atom, producers.get(atom))
            return done[atom]

        def cut(atom, made) -> list:
            if made is None or made not in trees[eqn]:
                return list(lax.split(env.read(atom), sizes, axis))
            if made.primitive.name == "dot_general":
                return _split_weights(made, bits, sizes, env)
            operands = zip(*(pieces(a) for a in made.invars), strict=True)
            return [eval_eqn(made, values)[0] for values in operands]

        return pieces(eqn.invars[0])

    return retrace(graph, rule)


def _tree(split, graph) -> set[JaxprEqn]:
    """The equations to run per piece: pointwise ones above time-parallel values.

    Empty if the split reads nothing time-parallel. An equation whose value is
    also read by others runs whole: per piece it would run twice.
    """
    producers, consumers, bits = graph.producers(), graph.consumers(), graph.depends()
    axis = split.params["axis"]
    tree: set[JaxprEqn] = set()

    def grows(atom) -> bool:
        """Whether a time-parallel value stands at or above `atom`."""
        if var(atom) is None or atom.aval.ndim <= axis or atom.aval.shape[axis] == 1:
            return False
        made = producers.get(atom)
        timed = bits[atom] == TIME
        if made is not None and made.primitive.name in ops.POINTWISE:
            # Every branch is walked: each adds its own part of the tree.
            timed = any([grows(a) for a in made.invars]) or timed
            if timed:
                tree.add(made)
        elif made is not None and timed and ops.splittable(made, axis, bits):
            tree.add(made)
        return timed

    if not grows(split.invars[0]):
        return set()
    while True:
        inside = {*tree, split}
        shared = {e for e in tree if not set(consumers[e.outvars[0]]) <= inside}
        if not shared:
            return tree
        tree -= shared


def _split_weights(eqn, bits, sizes, env) -> list:
    side = 0 if bits[eqn.invars[0]] == WEIGHTS else 1
    (contract, _) = eqn.params["dimension_numbers"]
    weights = lax.split(env.read(eqn.invars[side]), sizes, 1 - contract[side][0])
    data = env.read(eqn.invars[1 - side])
    pairs = [(w, data) if side == 0 else (data, w) for w in weights]
    return [eval_eqn(eqn, pair)[0] for pair in pairs]


def regroup_sums(graph: Graph) -> tuple[Graph, list]:
    """`(x @ W + h @ U) + b` becomes `h @ U + (x @ W + b)`.

    Terms that do not depend on the carry are added once, outside the loop.
    """
    bits, producers, consumers = graph.depends(), graph.producers(), graph.consumers()

    def leaves(eqn) -> Iterable:
        for a in eqn.invars:
            made = producers.get(var(a))
            inner = made is not None and made.primitive.name == "add"
            if inner and len(consumers[a]) == 1 and bits[a] & CARRY:
                yield from leaves(made)
            else:
                yield a

    def is_root(eqn) -> bool:
        users = consumers.get(eqn.outvars[0], [])
        names = [None if u is None else u.primitive.name for u in users]
        return names != ["add"]

    def rule(eqn, env):
        if eqn.primitive.name != "add" or not is_root(eqn):
            return None
        terms = list(leaves(eqn))
        still = [v for v in variables(terms) if not bits[v] & CARRY]
        moving = [a for a in terms if a not in still]
        if len(still) < 2 or not any(recurrent(a, bits) for a in moving):
            return None
        return [jnp.add(_total(moving, env), _total(still, env))]

    return retrace(graph, rule)


def _total(terms, env):
    total = env.read(terms[0])
    for a in terms[1:]:
        total = jnp.add(total, env.read(a))
    return total
