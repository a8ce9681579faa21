"""Passes that bring different ways to write the same step to one form."""

from __future__ import annotations

import functools
from typing import Any

from jax import lax
from jax.extend.core import JaxprEqn, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.gemm import swapped
from scanrnn.planner.ir.graph import CARRY, TIME, WEIGHTS, Graph, eval_eqn, variables
from scanrnn.planner.ir.retrace import retrace
from scanrnn.planner.passes.rewrite import recurrent, var


def cancel_splits(graph: Graph) -> tuple[Graph, list]:
    """Replace `split(concatenate(parts))` by `parts`, if the sizes agree."""
    producers, found = graph.producers, {}
    for eqn in (e for e in graph.eqns if e.primitive.name == "split"):
        made = producers.get(var(eqn.invars[0]))
        if made is None or made.primitive.name != "concatenate":
            continue
        axis = eqn.params["axis"]
        sizes = tuple(ops.aval(a).shape[axis] for a in made.invars)
        if made.params["dimension"] == axis and sizes == tuple(eqn.params["sizes"]):
            found[eqn] = made

    def rule(eqn, env):
        return [env.read(a) for a in found[eqn].invars]

    return retrace(graph, rule, found)


def transpose_products(graph: Graph) -> tuple[Graph, list]:
    """Rewrite `(W @ h.T).T` as `h @ W.T`, with `W.T` computed once.

    `vmap` of a cell for one example has the first form. GEMM libraries prefer the batch
    first and the weights row by row. With the first form they would pack the weights at
    every step.
    """
    bits, producers = graph.depends, graph.producers
    ends = _ends_in_products(graph)

    def tree(atom) -> list[JaxprEqn]:
        """The sums and products that make a sum of products, operands first."""
        todo, found = [atom], []
        while todo:
            found.append(producers[todo.pop()])
            if found[-1].primitive.name in ops.ADDITIVE:
                todo += [v for v in variables(found[-1].invars) if v in ends]
        return found[::-1]

    def product(made, env):
        ((left,), (right,)), _ = made.params["dimension_numbers"]
        weights, data = map(env.read, made.invars)
        fixed = all(bits[v] == WEIGHTS for v in variables(made.invars[:1]))
        if left == 1 and fixed:
            weights, left = weights.T, 0
        numbers = (((right,), (left,)), ((), ()))
        params = {"precision": swapped(made.params["precision"])}
        params |= {"dimension_numbers": numbers}
        return eval_eqn(made, (data, weights), made.params | params)

    def rule(eqn, env):
        """The transpose of a sum of products: the sum of that of each product."""
        done: dict[Var, Any] = {}

        def transposed(atom):
            if var(atom) in done:
                return done[atom]
            value = env.read(atom)
            return value.T if ops.aval(atom).ndim == 2 else value

        for made in tree(eqn.invars[0]):
            adds = made.primitive.name in ops.ADDITIVE
            operands = map(transposed, made.invars)
            outs = eval_eqn(made, list(operands)) if adds else product(made, env)
            done[made.outvars[0]] = outs[0]
        return [done[eqn.invars[0]]]

    transposes = [e for e in graph.eqns if _transposes(e) and var(e.invars[0]) in ends]
    return retrace(graph, rule, transposes)


def _ends_in_products(graph: Graph) -> set[Var]:
    """Products of matrices, and sums with such terms, each read by one equation."""
    found: set[Var] = set()
    for eqn in graph.eqns:
        terms = eqn.invars if eqn.primitive.name in ops.ADDITIVE else ()
        if _is_product(eqn) or not found.isdisjoint(variables(terms)):
            alone = (v for v in eqn.outvars if len(graph.consumers.get(v, ())) == 1)
            found.update(alone)
    return found


def _transposes(eqn) -> bool:
    """Whether an equation transposes a matrix."""
    return eqn.primitive.name == "transpose" and eqn.params["permutation"] == (1, 0)


def _is_product(eqn) -> bool:
    """Whether an equation multiplies two matrices."""
    if eqn.primitive.name != "dot_general" or any(map(ops.is_literal, eqn.invars)):
        return False
    two = all(ops.is_matrix_of(eqn, side) for side in (0, 1))
    return two and eqn.params.get("out_sharding") is None


def gather_slices(graph: Graph) -> tuple[Graph, list]:
    """Replace slices that together tile an array by one `split`.

    The transpose of a split is one concatenate. That of slices is a sum of pads.
    """
    tiles: dict[JaxprEqn, tuple[list[JaxprEqn], int]] = {}
    for v, users in graph.consumers.items():
        slices = [u for u in users if u is not None and u.primitive.name == "slice"]
        for axis in range(ops.aval(v).ndim if len(slices) > 1 else 0):
            ordered = sorted(slices, key=lambda e, i=axis: e.params["start_indices"][i])
            if _tile(ops.aval(v).shape, ordered, axis):
                tiles |= dict.fromkeys(slices, (ordered, axis))

    def rule(eqn, env):
        (out,) = eqn.outvars
        if out not in env:
            ordered, axis = tiles[eqn]
            outs = [e.outvars[0] for e in ordered]
            sizes = [ops.aval(v).shape[axis] for v in outs]
            parts = lax.split(env.read(eqn.invars[0]), sizes, axis)
            env.update(zip(outs, parts, strict=True))
        return [env[out]]

    return retrace(graph, rule, tiles)


def join_splits(graph: Graph) -> tuple[Graph, list]:
    """Replace a split, and splits of its pieces, by one split into all pieces.

    Each piece can then be read as its own slice of the array of all steps.
    """
    splits = [e for e in graph.eqns if e.primitive.name == "split"]
    inner = {}
    for eqn in splits:
        made = graph.producers.get(var(eqn.invars[0]))
        again = made in splits and made.params["axis"] == eqn.params["axis"]
        if again and len(graph.consumers[eqn.invars[0]]) == 1:
            inner[eqn.invars[0]] = eqn

    def pieces(eqn) -> list[Var]:
        found = (pieces(inner[v]) if v in inner else [v] for v in eqn.outvars)
        return [piece for of_one in found for piece in of_one]

    def rule(eqn, env):
        axis, found = eqn.params["axis"], pieces(eqn)
        if eqn.invars[0] not in inner:
            sizes = [ops.aval(v).shape[axis] for v in found]
            parts = lax.split(env.read(eqn.invars[0]), sizes, axis)
            env.update(zip(found, parts, strict=True))

        def value(v):
            # Nothing reads a piece that is split again.
            names = pieces(inner[v]) if v in inner else [v]
            return lax.concatenate([env.read(u) for u in names], axis)

        return [value(v) for v in eqn.outvars]

    both = {e for v in inner for e in (inner[v], graph.producers[v])}
    return retrace(graph, rule, both)


def _tile(shape, slices, axis) -> bool:
    """Whether slices, in order, tile one axis, and take all of the other axes."""
    end = 0
    for eqn in slices:
        starts, ends = list(eqn.params["start_indices"]), [*eqn.params["limit_indices"]]
        if eqn.params["strides"] is not None or starts[axis] != end:
            return False
        end, starts[axis], ends[axis] = ends[axis], 0, shape[axis]
        if any(starts) or tuple(ends) != tuple(shape):
            return False
    return end == shape[axis]


def squeeze_reductions(graph: Graph) -> tuple[Graph, list]:
    """Drop axes of size 1 from what a sum, a maximum, ... reduces."""
    units = {e: _units(e) for e in graph.eqns if "axes" in e.params}
    units = {e: axes for e, axes in units.items() if axes}

    def rule(eqn, env):
        kept = [i for i in range(ops.aval(eqn.invars[0]).ndim) if i not in units[eqn]]
        found = lax.squeeze(env.read(eqn.invars[0]), units[eqn])
        axes = tuple(kept.index(i) for i in eqn.params["axes"] if i in kept)
        if axes:
            (found,) = eval_eqn(eqn, [found], eqn.params | {"axes": axes})
        return [lax.reshape(found, ops.aval(eqn.outvars[0]).shape)]

    return retrace(graph, rule, units)


def _units(eqn) -> list[int]:
    """The axes of size 1 of the array that a reduction reads; none if it is split."""
    a = ops.aval(eqn.invars[0])
    if not ops.is_reduction(eqn) or ops.is_split(a):
        return []
    return [i for i, size in enumerate(a.shape) if isinstance(size, int) and size == 1]


def regroup_sums(graph: Graph) -> tuple[Graph, list]:
    """Rewrite `(x @ W + h @ U) + b` as `h @ U + (x @ W + b)`.

    The terms that do not depend on the carry can then be added outside the loop.
    """
    bits, producers, consumers = graph.depends, graph.producers, graph.consumers

    def leaves(eqn) -> list:
        todo, found = [*reversed(eqn.invars)], []
        while todo:
            a = todo.pop()
            made = producers.get(var(a))
            if (
                made is not None
                and made.primitive.name == "add"
                and len(consumers[a]) == 1
                and bits[a] & CARRY
            ):
                todo += reversed(made.invars)
            else:
                found.append(a)
        return found

    def is_root(eqn) -> bool:
        users = consumers.get(eqn.outvars[0], [])
        names = [None if u is None else u.primitive.name for u in users]
        return names != ["add"]

    def groups(eqn) -> tuple[list, list] | None:
        terms = leaves(eqn)
        still = [v for v in variables(terms) if not bits[v] & CARRY]
        moving = [a for a in terms if a not in still]
        if len(still) < 2 or not any(recurrent(a, bits) for a in moving):
            return None
        # Sums with constants, or with a term that is subtracted later, stay as they
        # are: `(z + big) - big` is a way to round z.
        if any(map(ops.is_literal, terms)) or not any(bits[v] & TIME for v in still):
            return None
        users = [u for u in consumers.get(eqn.outvars[0], ()) if u is not None]
        if any(u.primitive.name == "sub" and u.invars[1] in terms for u in users):
            return None
        return moving, still

    roots = [e for e in graph.eqns if e.primitive.name == "add" and is_root(e)]
    found = {e: two for e in roots if (two := groups(e)) is not None}

    def rule(eqn, env):
        sums = (functools.reduce(lax.add, map(env.read, g)) for g in found[eqn])
        return [lax.add(*sums)]

    return retrace(graph, rule, found)
