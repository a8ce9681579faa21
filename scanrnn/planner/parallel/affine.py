"""Find the leaves of a carry that need not run step by step: the affine ones.

A leaf is affine if a step computes `h' = A h + b` from it, where A and b depend on
inputs alone. Then its values at all steps are a scan with an associative operation.
Leaves that depend on one another form a group. The groups have an order: once the
values of a group are known at all steps, they are inputs of the next groups.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.functions import once
from scanrnn.planner.ir.graph import Env, Graph, Values, variables
from scanrnn.planner.ir.retrace import graph_of
from scanrnn.planner.parallel import max_plus
from scanrnn.planner.parallel.affine_rules import NotAffineError, rule_of, spread
from scanrnn.planner.parallel.axis_maps import AxisMap, kept, of_leaf
from scanrnn.planner.parallel.leaves import (
    components,
    leaves_read,
    path,
    read_after,
    set_of,
    union,
)

# The most numbers in a coupled block. The product of two blocks of n costs n**3.
LARGEST_BLOCK = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Leaves of the carry that depend on one another, and how a step computes them.

    Attributes:
      leaves: the indices of the leaves in the carry.
      kind: how a step computes these leaves: "constant" (from inputs alone), "sum"
        (`h' = h + b`), "diagonal" (`h' = a * h + b` for each number by itself), "block"
        (`h' = A h + b` with small matrices A), "max-plus" (`h' = max(h + a, b)`),
        "log-sum-exp" (the same with logaddexp for max), or "sequential" (any other way:
        step by step).
      why: why it cannot run in parallel, or how many numbers are coupled; else "".
      mixed: axes of the leaves along which numbers are coupled.
      size: how many numbers are coupled with one another.
      read: whether the outputs of a step or other leaves read these leaves.
    """

    leaves: tuple[int, ...]
    kind: str
    why: str = ""
    mixed: tuple[int, ...] = ()
    size: int = 1
    read: bool = True

    @property
    def parallel(self) -> bool:
        """Whether its values at all steps can be computed at once."""
        return self.kind != "sequential"


@once
def groups(graph: Graph) -> tuple[Group, ...]:
    """Group the leaves of a loop's carry, in the order in which to compute them."""
    reads, after, parts = leaves_read(graph), read_after(graph), components(graph)
    sets = {leaves: set_of(leaves) for leaves in parts}
    # What the outputs of a step or leaves of other groups read.
    seen = union(reads[v] for v in variables(graph.ys))
    seen |= union(union(after[k] for k in leaves) & ~of for leaves, of in sets.items())
    return tuple(
        dataclasses.replace(_group(graph, leaves), read=bool(seen & of))
        for leaves, of in sets.items()
    )


def _group(graph, leaves) -> Group:
    """Classify a group of leaves."""
    after, of = read_after(graph), set_of(leaves)
    if not any(after[k] & of for k in leaves):
        return Group(leaves, "constant")
    eqns = path(graph, leaves, [graph.carry_out[k] for k in leaves])
    made = itertools.chain(*(e.outvars for e in eqns))
    if not all(map(_is_sized, (*(graph.carry[k] for k in leaves), *made))):
        return Group(leaves, "sequential", "sizes that are not known")
    if not all(ops.is_number(graph.carry[k]) for k in leaves):
        return Group(leaves, "sequential", "no numbers")
    try:
        maps = depend(graph, leaves, eqns)
    except NotAffineError as error:
        other = max_plus.kind_of(graph, leaves)
        if other is not None:
            return Group(leaves, other)
        return Group(leaves, "sequential", str(error))
    return _of_maps(graph, leaves, maps)


def _is_sized(v) -> bool:
    return all(isinstance(d, int) for d in getattr(ops.aval(v), "shape", ()))


def _of_maps(graph, leaves, maps) -> Group:
    shapes = {ops.aval(graph.carry[k]).shape for k in leaves}
    if len(shapes) > 1:
        return Group(leaves, "sequential", "leaves of several shapes are coupled")
    (shape,) = shapes
    apart = [kept(m, shape) for of in maps for m in of.values()]
    apart = frozenset(range(len(shape))).intersection(*apart)
    mixed = tuple(i for i, d in enumerate(shape) if i not in apart and d > 1)
    size = len(leaves) * math.prod(shape[i] for i in mixed)
    if size > LARGEST_BLOCK:
        return Group(leaves, "sequential", f"{size} numbers are coupled", mixed, size)
    if size > 1:
        return Group(leaves, "block", f"{size} numbers are coupled", mixed, size)
    unit = all(m.unit for of in maps for m in of.values())
    return Group(leaves, "sum" if unit else "diagonal")


def depend(
    graph: Graph, leaves: tuple[int, ...], eqns: Iterable[JaxprEqn]
) -> list[Mapping[int, AxisMap]]:
    """How some leaves of the next carry depend on the same leaves before the step.

    `eqns` are the equations that lead from the one to the other.

    Returns:
      For each leaf, an `AxisMap` by the index of the leaf that it depends on.

    Raises:
      NotAffineError: if one of the leaves is not affine in these leaves.
    """
    found: dict[Any, dict[int, AxisMap]] = {
        graph.carry[k]: {k: of_leaf(ops.aval(graph.carry[k]).shape)} for k in leaves
    }
    for eqn in eqns:
        ins = [{} if ops.is_literal(a) else found.get(a, {}) for a in eqn.invars]
        rule = rule_of(eqn, list(map(bool, ins)))
        made: list[dict] = [{} for _ in eqn.outvars]
        for leaf in dict.fromkeys(itertools.chain(*ins)):
            maps = rule.depend(eqn, [of.get(leaf) for of in ins])
            for of, m in zip(made, maps, strict=True):
                of[leaf] = m
        found.update(zip(eqn.outvars, made, strict=True))
    outs = (graph.carry_out[k] for k in leaves)
    return [{} if ops.is_literal(v) else found.get(v, {}) for v in outs]


def coefficients(graph: Graph, group: Group) -> tuple[Graph, Values]:
    """The graph that computes `A` and `b` of a step of an affine group; and constants.

    If n numbers are coupled, the ys of the graph are the n rows of A, with n arrays
    each, and then the n arrays of b. These arrays have the axes of the leaves that are
    not mixed. An axis has size 1 where the array is constant along it. A rounding of
    the carry to half precision at the end of a step is left out.

    Returns:
      The graph, and its new constants by variable.
    """
    carry = [graph.carry[k] for k in group.leaves]
    outs = [unrounded(graph, graph.carry_out[k]) for k in group.leaves]
    eqns, mixed = path(graph, group.leaves, outs), group.mixed
    shape = ops.aval(carry[0]).shape
    places = list(itertools.product(*(range(shape[i]) for i in mixed)))
    entries = list(itertools.product(range(len(carry)), places))

    def run(values):
        free = Env(graph.eqns, values)

        def column(seeds, constant=False):
            values = evaluate(graph, eqns, seeds, free, constant)
            return [_entry(outs[i], values, mixed, at) for i, at in entries]

        zero = dict.fromkeys(carry)
        columns = [
            column({**zero, carry[i]: _one(carry[i], mixed, at)}) for i, at in entries
        ]
        rows = zip(*columns, strict=True)
        return [*itertools.chain(*rows), *column(zero, constant=True)]

    others = [v for v in graph.carry if v not in carry]
    return graph_of(run, graph.weights, (), (*graph.xs, *others))


def unrounded(graph: Graph, atom):
    """The value before a cast to fewer bits, if that cast is its last equation."""
    eqn = graph.producer(atom)
    if eqn is None or eqn.primitive.name != "convert_element_type":
        return atom
    source = eqn.invars[0]
    floats = ops.is_inexact(source) and ops.is_inexact(atom)
    return source if floats and ops.bytes_of(source) > ops.bytes_of(atom) else atom


def evaluate(graph, eqns, seeds, free: Env, constant: bool) -> dict:
    """Evaluate what depends on some leaves. Returns values by variable; None is zero.

    `seeds` are the values of the leaves, `free` values that do not depend on them.
    `constant` says whether to add terms that do not depend on the leaves.
    """
    values = dict(seeds)
    for eqn in eqns:
        dependent = [not ops.is_literal(a) and a in values for a in eqn.invars]
        rule = rule_of(eqn, dependent)
        first = len(dependent) if rule.added is None or constant else rule.added
        ins = [
            values[a] if m else None if i >= first else thin(graph, free, a)
            for i, (a, m) in enumerate(zip(eqn.invars, dependent, strict=True))
        ]
        for v, value in zip(eqn.outvars, rule.apply(eqn, ins), strict=True):
            values[v] = value if value is None else _ranked(value, v)
    return values


def thin(graph: Graph, free: Env, atom):
    """The value of an atom; a broadcast keeps axes of size 1 where it repeats."""
    eqn = graph.producer(atom)
    if eqn is None or atom in free or eqn.primitive.name != "broadcast_in_dim":
        return jnp.asarray(free.read(atom))
    return spread(eqn, jnp.asarray(free.read(eqn.invars[0])))


def _ranked(value, v):
    """The value with the number of axes of its variable."""
    rank = ops.aval(v).ndim
    return value if value.ndim == rank else jnp.reshape(value, (1,) * rank)


def _one(v, mixed, at):
    """An array of ones at one index of the mixed axes, and zeros elsewhere."""
    shape = ops.aval(v).shape
    place = dict(zip(mixed, at, strict=True))
    seed = jnp.ones([1] * len(shape), ops.aval(v).dtype)
    for i, k in place.items():
        along = jnp.arange(shape[i]) == k
        sizes = [shape[i] if j == i else 1 for j in range(len(shape))]
        seed = seed * along.reshape(sizes).astype(seed.dtype)
    return seed


def _entry(v, values, mixed, at):
    """A value at one index of the mixed axes, without these axes."""
    aval, value = ops.aval(v), values.get(v)
    if value is None:
        return jnp.zeros([1] * (aval.ndim - len(mixed)), aval.dtype)
    place = dict(zip(mixed, at, strict=True))
    at = (
        (place[i] if size > 1 else 0) if i in place else slice(None)
        for i, size in enumerate(value.shape)
    )
    return value[tuple(at)]
