"""What of a loop need not run step by step: leaves of its carry that are affine.

Where a step makes `h' = A h + b` of a leaf, with A and b of inputs alone, the values of
all steps are a scan with an associative operation. The leaves are taken in groups that
depend on one another, in order: the values of a group, once they are known at all
steps, are inputs of the next.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Var

from scanrnn.planner import max_plus, ops
from scanrnn.planner.affine_rules import NotAffineError, rule_of, spread
from scanrnn.planner.axis_maps import AxisMap, kept, of_leaf
from scanrnn.planner.graph import Env, Graph, graph_of, needed, variables

# Numbers in a block of coupled ones: a product of two blocks takes its third power.
LARGEST_BLOCK = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Leaves of the carry that depend on one another, and how.

    Attributes:
      leaves: their places in the carry.
      kind: "constant" (of inputs alone), "sum" (what was, plus something), "diagonal"
        (each number by itself), "block" (a few numbers together), "max-plus" (the
        larger of what was, plus something, and something), or "sequential".
      why: what keeps it from running in parallel, or what is coupled.
      mixed: axes of the leaves along which numbers are coupled, for a "block".
      size: how many numbers are coupled.
      read: whether anything but these leaves reads them before the last step is done.
    """

    leaves: tuple[int, ...]
    kind: str
    why: str = ""
    mixed: tuple[int, ...] = ()
    size: int = 1
    read: bool = True

    @property
    def parallel(self) -> bool:
        """Whether its values at all steps are made at once."""
        return self.kind != "sequential"


@functools.lru_cache(maxsize=512)
def groups(graph: Graph) -> tuple[Group, ...]:
    """The leaves of a loop's carry, in the order in which they are to be known."""
    reads = _reads(graph)
    after = [reads[v] if variables([v]) else frozenset() for v in graph.carry_out]
    seen = {i for v in variables(graph.ys) for i in reads[v]}
    found = []
    for leaves in _components(after):
        others = (of for k, of in enumerate(after) if k not in leaves)
        group = _group(graph, leaves, after)
        read = not seen.union(*others).isdisjoint(leaves)
        found.append(dataclasses.replace(group, read=read))
    return tuple(found)


def _reads(graph) -> dict[Any, frozenset[int]]:
    """Which leaves of the carry each value depends on."""
    reads = dict.fromkeys((*graph.weights, *graph.xs), frozenset())
    reads |= {v: frozenset([i]) for i, v in enumerate(graph.carry)}
    for eqn in graph.eqns:
        of = frozenset().union(*(reads[v] for v in variables(eqn.invars)))
        reads.update(dict.fromkeys(eqn.outvars, of))
    return reads


def _components(reads) -> list[tuple[int, ...]]:
    """Strongly connected components of who reads whom, those that are read first."""
    reach = [set(of) for of in reads]
    for through, i in itertools.product(range(len(reads)), repeat=2):
        if through in reach[i]:
            reach[i] |= reach[through]
    parts = {
        tuple(k for k in sorted({i, *of}) if k == i or (i in reach[k] and k in of))
        for i, of in enumerate(reach)
    }
    return sorted(parts, key=lambda part: (len(reach[part[0]] | {*part}), part))


def _group(graph, leaves, after) -> Group:
    """What a group of leaves is; of each is known which leaves it reads."""
    if all(after[k].isdisjoint(leaves) for k in leaves):
        return Group(leaves, "constant")
    sizes = [d for k in leaves for d in ops.aval(graph.carry[k]).shape]
    if not all(isinstance(d, int) for d in sizes):
        return Group(leaves, "sequential", "sizes that are not known")
    if not all(ops.is_number(graph.carry[k]) for k in leaves):
        return Group(leaves, "sequential", "no numbers")
    try:
        maps = depend(graph, leaves)
    except NotAffineError as error:
        if max_plus.fits(graph, leaves):
            return Group(leaves, "max-plus")
        return Group(leaves, "sequential", str(error))
    return _of_maps(graph, leaves, maps)


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


def depend(graph: Graph, leaves: tuple[int, ...]) -> list[Mapping[int, AxisMap]]:
    """How each of some leaves of the next carry depends on these leaves.

    Raises:
      NotAffineError: if one of them is not affine in one of them.
    """
    found: dict[Any, dict[int, AxisMap]] = {
        graph.carry[k]: {k: of_leaf(ops.aval(graph.carry[k]).shape)} for k in leaves
    }
    outs = [graph.carry_out[k] for k in leaves]
    for eqn in needed(graph.eqns, outs):
        ins = [{} if ops.is_literal(a) else found.get(a, {}) for a in eqn.invars]
        if not any(ins):
            continue
        rule = rule_of(eqn, list(map(bool, ins)))
        made: list[dict] = [{} for _ in eqn.outvars]
        for leaf in dict.fromkeys(itertools.chain(*ins)):
            maps = rule.depend(eqn, [of.get(leaf) for of in ins])
            for of, m in zip(made, maps, strict=True):
                of[leaf] = m
        found.update(zip(eqn.outvars, made, strict=True))
    return [{} if ops.is_literal(v) else found.get(v, {}) for v in outs]


def coefficients(graph: Graph, group: Group) -> tuple[Graph, Mapping[Var, Any]]:
    """What makes `A` and `b` of a step, of an affine group; and new constants.

    Of n numbers that are coupled the ys are the n rows of A, each of n arrays, and then
    the n of b. These have an axis for each of the leaves' that is not mixed, of size 1
    where they are the same all along. A rounding to half precision of what is carried
    is left out.
    """
    carry = [graph.carry[k] for k in group.leaves]
    outs = [unrounded(graph, graph.carry_out[k]) for k in group.leaves]
    eqns, mixed = needed(graph.eqns, outs), group.mixed
    shape = ops.aval(carry[0]).shape
    places = list(itertools.product(*(range(shape[i]) for i in mixed)))
    entries = list(itertools.product(range(len(carry)), places))

    def run(known):
        free = Env(graph.eqns, known)

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
    """What a value was before it was rounded to fewer bits, if that came last."""
    eqn = None if ops.is_literal(atom) else graph.producers().get(atom)
    if eqn is None or eqn.primitive.name != "convert_element_type":
        return atom
    source = eqn.invars[0]
    floats = ops.is_inexact(source) and ops.is_inexact(atom)
    return source if floats and ops.bytes_of(source) > ops.bytes_of(atom) else atom


def evaluate(graph, eqns, seeds, free: Env, constant: bool) -> dict:
    """Values of what depends on some leaves, by variable; None is zero.

    Args:
      graph: the step.
      eqns: those of its equations that are asked for.
      seeds: values of the leaves.
      free: values of what does not depend on them.
      constant: whether what is added is.
    """
    values, producers = dict(seeds), graph.producers()
    for eqn in eqns:
        moving = [not ops.is_literal(a) and a in values for a in eqn.invars]
        if not any(moving):
            continue
        rule = rule_of(eqn, moving)
        first = len(moving) if rule.added is None or constant else rule.added
        ins = [
            values[a] if m else None if i >= first else thin(producers, free, a)
            for i, (a, m) in enumerate(zip(eqn.invars, moving, strict=True))
        ]
        for v, value in zip(eqn.outvars, rule.apply(eqn, ins), strict=True):
            values[v] = value if value is None else _ranked(value, v)
    return values


def thin(producers, free: Env, atom):
    """A value that may have axes of size 1, where it is a broadcast of such a one."""
    eqn = None if ops.is_literal(atom) else producers.get(atom)
    if eqn is None or atom in free or eqn.primitive.name != "broadcast_in_dim":
        return jnp.asarray(free.read(atom))
    return spread(eqn, jnp.asarray(free.read(eqn.invars[0])))


def _ranked(value, v):
    """A value with as many axes as it is to have."""
    rank = ops.aval(v).ndim
    return value if value.ndim == rank else jnp.reshape(value, (1,) * rank)


def _one(v, mixed, at):
    """One at some places of the mixed axes, along all others."""
    shape = ops.aval(v).shape
    place = dict(zip(mixed, at, strict=True))
    seed = jnp.ones([1] * len(shape), ops.aval(v).dtype)
    for i, k in place.items():
        along = jnp.arange(shape[i]) == k
        sizes = [shape[i] if j == i else 1 for j in range(len(shape))]
        seed = seed * along.reshape(sizes).astype(seed.dtype)
    return seed


def _entry(v, values, mixed, at):
    """A value at some places of the mixed axes, without these."""
    aval, value = ops.aval(v), values.get(v)
    if value is None:
        return jnp.zeros([1] * (aval.ndim - len(mixed)), aval.dtype)
    place = dict(zip(mixed, at, strict=True))
    at = (
        (place[i] if size > 1 else 0) if i in place else slice(None)
        for i, size in enumerate(value.shape)
    )
    return value[tuple(at)]
