"""Small passes from graph to graph. Each keeps the meaning and is one idea.

Every pass finds the equations it is for, and gives a rule `(eqn, env) -> new outputs`
for these, run while the step is traced again; what it makes unused is pruned.
"""

from __future__ import annotations

import itertools

from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.planner import axes, compat, ops
from scanrnn.planner.graph import CARRY, Graph, eval_eqn, needed, retrace


def share(graph: Graph) -> tuple[Graph, list]:
    """Compute once what the step writes twice (`h.astype(bf16)` per gate)."""
    seen: dict = {}
    same: dict[Var, Var] = {}
    firsts: dict[JaxprEqn, JaxprEqn] = {}
    for eqn in graph.eqns:
        key = _identity(eqn, same)
        first = eqn if key is None else seen.setdefault(key, eqn)
        if first is not eqn:
            firsts[eqn] = first
            same.update(zip(eqn.outvars, first.outvars, strict=True))

    def rule(eqn, env):
        return [env.read(v) for v in firsts[eqn].outvars]

    return retrace(graph, rule, firsts)


def _identity(eqn, same):
    if eqn.effects or ops.has_subjaxpr(eqn):
        return None
    ins = tuple(
        ("const", ops.aval(a).dtype, ops.aval(a).weak_type, str(a.val))
        if isinstance(a, Literal)
        else same.get(a, a)
        for a in eqn.invars
    )
    if any(isinstance(a, Literal) and ops.aval(a).shape for a in eqn.invars):
        return None
    params = tuple(sorted(eqn.params.items(), key=str))
    key = (eqn.primitive.name, compat.context(eqn), ins, params)
    return key if _hashable(key) else None


def _hashable(key) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def split(graph: Graph) -> tuple[Graph, list]:
    """`dot(concatenate([x, h]), W)` becomes `dot(x, Wx) + dot(h, Wh)`.

    The x half can then leave the loop, and the h half can be merged. So it is with
    the channels of a convolution. Of a readout every part is by itself: joined for all
    steps they would be an array of their own.
    """
    bits, producers = graph.depends(), graph.producers()
    inside = set(needed(graph.eqns, graph.carry_out))
    found: dict[JaxprEqn, tuple] = {}
    for eqn in filter(ops.is_heavy, graph.eqns):
        for side in (1, 0):
            kinds = bits if eqn in inside else None
            parts = _concatenated(eqn, side, producers, kinds)
            if parts is not None:
                found[eqn] = side, parts

    def rule(eqn, env):
        side, parts = found[eqn]
        return _split_product(eqn, side, parts, env)

    return retrace(graph, rule, found)


def _concatenated(eqn, side, producers, bits):
    """The operand's parts, if it joins some along a contracted axis.

    Those in a row of one kind stay together, if `bits` tell kinds.
    """
    made = producers.get(var(eqn.invars[side]))
    cast = None
    if made is not None and made.primitive.name == "convert_element_type":
        cast = made.outvars[0].aval.dtype
        made = producers.get(var(made.invars[0]))
    if made is None or made.primitive.name != "concatenate":
        return None
    axis = made.params["dimension"]
    other_axis = axes.contracted(eqn, side).get(axis)
    if other_axis is None or is_sharded(eqn.invars[1 - side], other_axis):
        return None
    groups = [[a] for a in made.invars]
    if bits is not None:
        of_kinds = itertools.groupby(made.invars, lambda a: recurrent(a, bits))
        groups = [list(g) for _, g in of_kinds]
    return (groups, axis, other_axis, cast) if len(groups) > 1 else None


def _split_product(eqn, side, parts, env):
    groups, axis, other_axis, cast = parts
    other = env.read(eqn.invars[1 - side])
    start, total = 0, None
    for group in groups:
        values = [env.read(a) for a in group]
        value = values[0] if len(values) == 1 else lax.concatenate(values, axis)
        if cast is not None:
            value = lax.convert_element_type(value, cast)
        stop = start + value.shape[axis]
        weight = lax.slice_in_dim(other, start, stop, axis=other_axis)
        operands = (value, weight) if side == 0 else (weight, value)
        (term,) = eval_eqn(eqn, operands)
        total = term if total is None else lax.add(total, term)
        start = stop
    return [total]


def merge(graph: Graph) -> tuple[Graph, list]:
    """Dots that share their recurrent operand become one GEMM, then a split.

    Convolutions likewise, if their windows are alike.
    """
    bits = graph.depends()
    # A readout contraction can leave the loop; merged it would have to stay.
    carrying = set(needed(graph.eqns, graph.carry_out))
    groups: dict = {}
    for eqn in graph.eqns:
        key = _merge_key(eqn, bits)
        if key is not None:
            groups.setdefault((key, eqn in carrying), []).append(eqn)
    group_of = {e: g for g in groups.values() if len(g) > 1 for e in g}
    done: dict[JaxprEqn, object] = {}

    def rule(eqn, env):
        if eqn not in done:
            done.update(_merged(group_of[eqn], bits, env))
        return [done[eqn]]

    return retrace(graph, rule, group_of)


def _merge_key(eqn, bits):
    """Equations with equal keys compute `h @ W_k` for one h and one layout."""
    kinds = [recurrent(a, bits) for a in eqn.invars]
    if not ops.is_heavy(eqn) or sorted(kinds) != [False, True]:
        return None
    side = kinds.index(False)
    weight, free = eqn.invars[side], axes.features(eqn, side)
    if isinstance(weight, Literal) or bits[weight] != 0 or free is None:
        return None
    shape = list(weight.aval.shape)
    if any(is_sharded(weight, axis) for axis in range(len(shape))):
        return None
    shape[free[0]] = None
    form = str(eqn.params), tuple(shape), weight.aval.dtype
    return eqn.primitive, eqn.invars[1 - side], side, form


def _merged(eqns, bits, env):
    side = [recurrent(a, bits) for a in eqns[0].invars].index(False)
    found = axes.features(eqns[0], side)
    assert found is not None, "what has no features has no key"
    of_weight, of_result = found
    weights = [env.read(e.invars[side]) for e in eqns]
    weight = lax.concatenate(weights, of_weight)
    state = env.read(eqns[0].invars[1 - side])
    operands = (weight, state) if side == 0 else (state, weight)
    (out,) = eval_eqn(eqns[0], operands)
    sizes = [w.shape[of_weight] for w in weights]
    return zip(eqns, lax.split(out, sizes, of_result), strict=True)


def var(atom):
    """The variable an atom is, or None for a constant."""
    return None if isinstance(atom, Literal) else atom


def recurrent(atom, bits) -> bool:
    """Whether an atom depends on the carry."""
    return not isinstance(atom, Literal) and bool(bits[atom] & CARRY)


def is_sharded(atom, axis) -> bool:
    """Whether an axis of a value is split among devices, as its type says."""
    sharding = getattr(atom.aval, "sharding", None)
    if sharding is None or sharding.mesh.empty:
        return False
    return sharding.spec[axis] is not None
