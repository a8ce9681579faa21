"""Small passes from graph to graph that keep the meaning of the step.

Each pass finds the equations that it is for, and gives a rule `(eqn, env) -> outputs`
for them. The step is traced again with this rule. Equations that are then unused are
dropped.
"""

from __future__ import annotations

import itertools

from jax import lax
from jax.extend.core import JaxprEqn, Literal

from scanrnn.planner.ir import compat, ops
from scanrnn.planner.ir.graph import CARRY, Graph, eval_eqn, needed
from scanrnn.planner.ir.retrace import retrace


def split(graph: Graph) -> tuple[Graph, list]:
    """Rewrite `dot(concatenate([x, h]), W)` as `dot(x, Wx) + dot(h, Wh)`.

    The half with x can then leave the loop, and the half with h can be merged. The same
    is done for the channels of a convolution. In a readout every part becomes a product
    by itself: parts joined for all steps would need one more array.
    """
    bits, producers = graph.depends, graph.producers
    inside = set(needed(graph.eqns, graph.carry_out))
    found: dict[JaxprEqn, tuple] = {}
    for eqn in filter(ops.is_heavy, graph.eqns):
        if not ops.is_number(eqn.outvars[0]):
            continue  # products of booleans have no sum
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
    """The parts of an operand, if it is a concatenation along a contracted axis.

    If `bits` is given, neighbours stay together that both depend on the carry, or both
    do not.
    """
    made = producers.get(var(eqn.invars[side]))
    cast = None
    if made is not None and made.primitive.name == "convert_element_type":
        cast = ops.aval(made.outvars[0]).dtype
        made = producers.get(var(made.invars[0]))
    if made is None or made.primitive.name != "concatenate":
        return None
    axis = made.params["dimension"]
    other_axis = _contracted(eqn, side).get(axis)
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
    """Merge dots that share their recurrent operand into one GEMM, then a split.

    The same is done for convolutions with equal windows.
    """
    bits = graph.depends
    # A readout contraction can leave the loop, but not if it is merged with others.
    carrying = set(needed(graph.eqns, graph.carry_out))
    groups: dict = {}
    for eqn in graph.eqns:
        key = _merge_key(eqn, bits)
        if key is not None:
            groups.setdefault((key, eqn in carrying), []).append(eqn)
    group_of = {e: g for g in groups.values() if len(g) > 1 for e in g}

    def rule(eqn, env):
        (out,) = eqn.outvars
        if out not in env:
            env.update(_merged(group_of[eqn], bits, env))
        return [env[out]]

    return retrace(graph, rule, group_of)


def _merge_key(eqn, bits):
    """A key, equal for products `h @ W_k` with the same h and layout; or None."""
    kinds = [recurrent(a, bits) for a in eqn.invars]
    if not ops.is_heavy(eqn) or sorted(kinds) != [False, True]:
        return None
    side = kinds.index(False)
    weight, free = eqn.invars[side], _features(eqn, side)
    if isinstance(weight, Literal) or bits[weight] != 0 or free is None:
        return None
    shape = list(ops.aval(weight).shape)
    if any(is_sharded(weight, axis) for axis in range(len(shape))):
        return None
    shape[free[0]] = None
    form = str(eqn.params), tuple(shape), ops.aval(weight).dtype
    return eqn.primitive, eqn.invars[1 - side], side, form, compat.context(eqn)


def _merged(eqns, bits, env):
    side = [recurrent(a, bits) for a in eqns[0].invars].index(False)
    found = _features(eqns[0], side)
    assert found is not None, "what has no features has no key"
    of_weight, of_result = found
    weights = [env.read(e.invars[side]) for e in eqns]
    weight = lax.concatenate(weights, of_weight)
    state = env.read(eqns[0].invars[1 - side])
    operands = (weight, state) if side == 0 else (state, weight)
    (out,) = eval_eqn(eqns[0], operands)
    sizes = [w.shape[of_weight] for w in weights]
    outs = (e.outvars[0] for e in eqns)
    return zip(outs, lax.split(out, sizes, of_result), strict=True)


def var(atom):
    """The atom if it is a variable, or None for a constant."""
    return None if isinstance(atom, Literal) else atom


def recurrent(atom, bits) -> bool:
    """Whether an atom depends on the carry."""
    return not isinstance(atom, Literal) and bool(bits[atom] & CARRY)


def is_sharded(atom, axis) -> bool:
    """Whether, by its type, an axis of a value is split among devices."""
    sharding = getattr(ops.aval(atom), "sharding", None)
    if sharding is None or sharding.mesh.empty:
        return False
    return sharding.spec[axis] is not None


def _contracted(eqn: JaxprEqn, side: int) -> dict[int, int]:
    """The contracted axes of one operand, each with its partner in the other one."""
    if eqn.primitive.name == "dot_general":
        (contract, _) = eqn.params["dimension_numbers"]
        return dict(zip(contract[side], contract[1 - side], strict=True))
    if eqn.primitive.name != ops.CONVOLUTION or _in_groups(eqn):
        return {}
    channels = _spec(eqn).lhs_spec[1], _spec(eqn).rhs_spec[1]
    return {channels[side]: channels[1 - side]}


def _features(eqn: JaxprEqn, side: int) -> tuple[int, int] | None:
    """The feature axis of a weight matrix, and the same axis in the result.

    For a convolution it is the axis of the kernel with the output channels. None if the
    operand is not such a matrix or kernel.
    """
    if ops.is_matrix_of(eqn, side):
        (contract, _) = eqn.params["dimension_numbers"]
        last = ops.aval(eqn.outvars[0]).ndim - 1
        return 1 - contract[side][0], 0 if side == 0 else last
    if eqn.primitive.name == ops.CONVOLUTION and side == 1 and not _in_groups(eqn):
        return _spec(eqn).rhs_spec[0], _spec(eqn).out_spec[1]
    return None


def _spec(convolution: JaxprEqn) -> lax.ConvDimensionNumbers:
    return convolution.params["dimension_numbers"]


def _in_groups(convolution: JaxprEqn) -> bool:
    names = ("feature_group_count", "batch_group_count")
    return any(convolution.params[name] != 1 for name in names)
