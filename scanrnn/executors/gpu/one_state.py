"""Make the step of one state from a step of many: the equations are traced again."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from scanrnn.executors.gpu.block_checks import NotAKernelError
from scanrnn.executors.gpu.small_products import product
from scanrnn.executors.gpu.states import WHOLE, Cut, StateLayout
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, eval_eqn, needed, variables
from scanrnn.planner.ir.retrace import graph_of

_SAME = {"reshape", "squeeze", "copy"}


@dataclasses.dataclass(frozen=True, eq=False)
class OneState:
    """The step of one state.

    Attributes:
      graph: the step; its arrays are the parts that one state has of the whole arrays.
      whole: the whole step.
      layout: where the states lie in the arrays of the whole step.
    """

    graph: Graph
    whole: Graph
    layout: StateLayout

    @classmethod
    def of(cls, graph: Graph, state: Var, cut: Cut = WHOLE) -> OneState:
        """The step of one state.

        Raises:
          NotAKernelError: if it mixes the states.
        """
        layout = StateLayout.of(graph, state, cut)
        eqns, ys = needed(graph.eqns, graph.outs), variables(graph.ys)
        names = {
            v: Var(ops.aval(v).update(shape=layout.shape(v))) for v in graph.inputs
        }

        def run(values):
            found = {v: values[u] for v, u in names.items()}
            for eqn in eqns:
                found.update(zip(eqn.outvars, _outs(eqn, found, layout), strict=True))
            pairs = zip((*graph.carry, *ys), graph.outs, strict=True)
            return [_out(v, out, found, layout) for v, out in pairs]

        groups = graph.weights, graph.carry, graph.xs
        step, constants = graph_of(run, *([names[v] for v in g] for g in groups))
        assert not constants
        return cls(step, graph, layout)


def _out(v: Var, atom, found: Mapping, layout: StateLayout):
    """An output of the type of `v`."""
    value = atom.val if isinstance(atom, Literal) else found[atom]
    return jnp.broadcast_to(value, layout.shape(v)).astype(ops.aval(v).dtype)


def _outs(eqn: JaxprEqn, found: Mapping, layout: StateLayout) -> list:
    """The results of an equation for one state."""
    name, (out, *others) = eqn.primitive.name, eqn.outvars
    ins = [a.val if isinstance(a, Literal) else found[a] for a in eqn.invars]
    if name in ops.PRODUCTS:
        return [product(eqn, ins, layout)]
    if name in ops.ELEMENTWISE:
        return eval_eqn(eqn, _alike(eqn, ins, layout))
    rule = _RULES.get(name) or (_reduced if ops.is_reduction(eqn) else None)
    if rule is None or others:
        raise NotAKernelError(f"Triton has no {name}")
    return [lax.reshape(rule(eqn, ins, layout), layout.shape(out))]


def _alike(eqn: JaxprEqn, ins: list, layout: StateLayout) -> list:
    """Operands of the shape of the result; numbers stay numbers."""
    (out,) = eqn.outvars
    shape, kept = layout.shape(out), layout.kept(out)
    made = []
    for atom, value in zip(eqn.invars, ins, strict=True):
        if jnp.ndim(value):
            assert isinstance(atom, Var)
            widths = layout.widths(atom)
            value = lax.reshape(value, [widths[i] for i in kept])
            value = jnp.broadcast_to(value, shape)
        made.append(value)
    return made


def _reshaped(eqn: JaxprEqn, ins: list, layout: StateLayout):
    """What only changes the shape. The axes of the states need not be moved."""
    return ins[0]


def _transposed(eqn: JaxprEqn, ins: list, layout: StateLayout):
    (v,) = variables(eqn.invars)
    kept = layout.kept(v)
    order = [kept.index(i) for i in eqn.params["permutation"] if i in kept]
    return lax.transpose(ins[0], order)


def _spread(eqn: JaxprEqn, ins: list, layout: StateLayout):
    """An array along new axes, or along axes of size 1."""
    (out,) = eqn.outvars
    shape, kept = layout.shape(out), layout.kept(out)
    if not jnp.ndim(ins[0]):
        return lax.broadcast(jnp.asarray(ins[0], ops.aval(out).dtype), shape)
    (v,) = variables(eqn.invars)
    widths = layout.widths(v)
    pairs = [
        (widths[i], kept.index(j))
        for i, j in enumerate(eqn.params["broadcast_dimensions"])
        if j in kept
    ]
    value = lax.reshape(ins[0], [width for width, _ in pairs])
    return lax.broadcast_in_dim(value, shape, [at for _, at in pairs])


def _reduced(eqn: JaxprEqn, ins: list, layout: StateLayout):
    (v,), axes = variables(eqn.invars), eqn.params["axes"]
    if any(layout.counts(v, i) for i in axes):
        raise NotAKernelError(f"{eqn.primitive.name} mixes the states")
    kept = layout.kept(v)
    params = eqn.params | {"axes": tuple(kept.index(i) for i in axes)}
    return eqn.primitive.bind(ins[0], **params)


def _sliced(eqn: JaxprEqn, ins: list, layout: StateLayout):
    """One index of an axis, as a sum over all of it: Triton has no slices."""
    (v,), (out,) = variables(eqn.invars), eqn.outvars
    axis = _only(eqn, v, out, layout)
    at = layout.kept(v).index(axis)
    here = _is(eqn.params["start_indices"][axis], ins[0].shape, at)
    picked = lax.select(here, ins[0], lax.full_like(ins[0], 0))
    return lax.reduce_sum(picked, (at,))


def _padded(eqn: JaxprEqn, ins: list, layout: StateLayout):
    """One index of an axis, and beside it one number."""
    (v, *_), (out,) = variables(eqn.invars), eqn.outvars
    axis = _only(eqn, out, v, layout)
    shape, at = layout.shape(out), layout.kept(out).index(axis)
    here = _is(eqn.params["padding_config"][axis][0], shape, at)
    pad = lax.broadcast(jnp.asarray(ins[1], ins[0].dtype), shape)
    return lax.select(here, jnp.broadcast_to(ins[0], shape), pad)


def _only(eqn: JaxprEqn, wide: Var, narrow: Var, layout: StateLayout) -> int:
    """The axis of which an equation has one index, and of all others the whole."""
    pairs = list(zip(layout.widths(wide), layout.widths(narrow), strict=True))
    axes = [i for i, (one, other) in enumerate(pairs) if one != other]
    counts = ([layout.counts(v, i) for i in range(len(pairs))] for v in (wide, narrow))
    if operator.ne(*counts) or len(axes) != 1 or pairs[axes[0]][1] != 1:
        raise NotAKernelError(f"Triton has no {eqn.primitive.name}")
    return axes[0]


def _is(index: int, shape: tuple[int, ...], axis: int):
    """Where an axis has an index."""
    found = lax.broadcasted_iota("int32", shape, axis)
    return lax.eq(found, lax.full_like(found, index))


_RULES: dict[str, Callable] = {
    **dict.fromkeys(_SAME, _reshaped),
    "transpose": _transposed,
    "broadcast_in_dim": _spread,
    "slice": _sliced,
    "pad": _padded,
}
