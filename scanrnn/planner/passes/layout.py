"""Give each gate an array of its own, where a step splits one array into gates.

A loop body that takes several slices of one scanned array is about five times slower on
XLA for CPU than one that reads separate arrays. So the equations above a `split` run
once for each piece. Before the loop, this computes `x @ W_i` instead of a slice of
`x @ W`. In the loop, the step does not change; only its evaluation does: each piece is
read as its own slice of the array of all steps. The derivative stays that of the
unsplit step, with one cotangent array for all gates of a contraction.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.contractions import dot_in_pieces
from scanrnn.planner.ir.graph import (
    CARRY,
    TIME,
    WEIGHTS,
    Graph,
    eval_eqn,
    free,
    struct,
    variables_like,
)
from scanrnn.planner.ir.retrace import retrace
from scanrnn.planner.ir.rows import Place, spans
from scanrnn.planner.passes.rewrite import is_sharded


def push_splits(graph: Graph) -> tuple[Graph, list]:
    """Rewrite `split(x @ W + b)` as `x @ W_i + b_i` for each piece i.

    It runs for every platform, though its reason is XLA for CPU: the products before
    the loop are then one for each gate. The published counts of the compilers for GPU
    and TPU are with it.
    """
    bits, producers, consumers = graph.depends, graph.producers, graph.consumers
    trees = {}
    for eqn in graph.eqns:
        if _divides(eqn) and bits[eqn] == TIME:
            axis = eqn.params["axis"]
            trees[eqn] = _tree(
                eqn, graph, lambda v, i=axis: ops.splittable(producers.get(v), i, bits)
            )

    def rule(eqn, env):
        users = {eqn, *trees[eqn]}

        def leaf(v):
            made = producers.get(v)
            if ops.splittable(made, eqn.params["axis"], bits):
                if set(consumers[v]) <= users:
                    return _split_weights(made, bits, eqn.params["sizes"], env)
            return _split(eqn, env.read(v))

        return _in_pieces(eqn, trees[eqn], env, leaf)

    return retrace(graph, rule, trees)


def _split_weights(eqn, bits, sizes, env) -> list:
    side = 0 if bits[eqn.invars[0]] == WEIGHTS else 1
    matrix, data = (env.read(eqn.invars[i]) for i in (side, 1 - side))
    return dot_in_pieces(eqn, side, sizes, matrix, data)


def lay_out(loop: Graph) -> tuple[Graph, dict[Var, Place]]:
    """The loop with a time input for each gate; and where it lies in another input.

    This is for splits of recurrent values that have time inputs above them.
    """
    bits, xs = loop.depends, set(loop.xs)
    trees = {}
    pieces: dict[Any, list[Var]] = {}
    places: dict[Var, Place] = {}
    for eqn in loop.eqns:
        if not _divides(eqn) or not bits[eqn] & CARRY:
            continue
        axis, sizes = eqn.params["axis"], eqn.params["sizes"]
        tree = _tree(eqn, loop, lambda v, i=axis: v in xs and not is_sharded(v, i))
        read = {a for e in tree for a in e.invars if _has_pieces(a, axis)} & xs
        trees |= {eqn: tree} if read else {}
        for v in (v for v in loop.xs if v in read):
            found = [Place(v, axis, *span) for span in spans(sizes)]
            pieces[v, eqn] = variables_like(map(_struct_of, found))
            places |= zip(pieces[v, eqn], found, strict=True)

    if not trees:
        return loop, {}

    def rule(eqn, env):
        def leaf(v):
            names = pieces.get((v, eqn))
            return env.read_all(names) if names else _split(eqn, env.read(v))

        return _in_pieces(eqn, trees[eqn], env, leaf)

    wide = dataclasses.replace(loop, xs=(*loop.xs, *places))
    graph, consts = retrace(wide, rule, trees)
    if consts:
        return loop, {}
    read = set(free(graph.eqns, graph.outs))
    used = tuple(v for v in graph.xs if v in read)
    return dataclasses.replace(graph, xs=used), places


def _struct_of(place: Place) -> jax.ShapeDtypeStruct:
    whole = struct(place.whole)
    shape = list(whole.shape)
    shape[place.axis] = place.size
    return whole.update(shape=shape)


def _split(eqn, value) -> list:
    return list(lax.split(value, eqn.params["sizes"], eqn.params["axis"]))


def _in_pieces(split, tree, env, leaf) -> list:
    """The outputs of a split; the equations above it run once for each piece."""
    axis, count = split.params["axis"], len(split.params["sizes"])
    done: dict[Var, list] = {}

    def pieces(atom) -> list:
        if not _has_pieces(atom, axis):
            return [env.read(atom)] * count
        if atom not in done:
            done[atom] = leaf(atom)
        return done[atom]

    for eqn in tree:
        operands = zip(*map(pieces, eqn.invars), strict=True)
        done[eqn.outvars[0]] = [eval_eqn(eqn, values)[0] for values in operands]
    return pieces(split.invars[0])


def _divides(eqn) -> bool:
    """Whether an equation is a split of an axis that is longer than 1."""
    split = eqn.primitive.name == "split"
    return split and _has_pieces(eqn.invars[0], eqn.params["axis"])


def _has_pieces(atom, axis) -> bool:
    shape = ops.aval(atom).shape
    return not isinstance(atom, Literal) and len(shape) > axis and shape[axis] != 1


def _tree(split, graph, is_source) -> list[JaxprEqn]:
    """The pointwise equations between a split and the sources above it, in order.

    An equation whose value is also read elsewhere is not among them: it would run both
    in pieces and as a whole.
    """
    axis, consumers = split.params["axis"], graph.consumers
    above = _pointwise_above(split, graph)
    known: set[Var] = set()

    def follows(atom) -> bool:
        """Whether a source stands at or above `atom`."""
        return _has_pieces(atom, axis) and (atom in known or is_source(atom))

    tree = []
    for eqn in (e for e in graph.eqns if e in above):
        if any(map(follows, (*eqn.invars, *eqn.outvars))):
            tree.append(eqn)
            known.update(eqn.outvars)
    while True:
        inside = {*tree, split}
        alone = [e for e in tree if inside.issuperset(consumers[e.outvars[0]])]
        if len(alone) == len(tree):
            return tree
        tree = alone


def _pointwise_above(split, graph) -> set[JaxprEqn]:
    """All pointwise equations from which a split can be reached through others."""
    producers, axis = graph.producers, split.params["axis"]
    found: set[JaxprEqn] = set()
    todo = [split.invars[0]]
    while todo:
        atom = todo.pop()
        made = producers.get(atom) if _has_pieces(atom, axis) else None
        if made is not None and made.primitive.name in ops.POINTWISE:
            if made not in found:
                found.add(made)
                todo += made.invars
    return found
