"""Write a whole loop with the features first: `[F, B]` wherever it had `[B, F]`.

Then every product of the loop is `W.T @ h.T`, which XLA for CPU computes faster than
`h @ W` if the matrix is large and the batch is small, and no step transposes anything.
Arrays of all steps are transposed once, before the loop and after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import lax
from jax.extend.core import Literal, Var

from scanrnn.planner.ir import ops
from scanrnn.planner.ir.gemm import on_the_left, transposes
from scanrnn.planner.ir.graph import Graph, eval_eqn, struct, variables, variables_for
from scanrnn.planner.ir.retrace import graph_of
from scanrnn.planner.ir.rows import Rows

# Primitives whose parameters name one axis, or several, or have an entry for each.
_AXIS = {"split": "axis", "concatenate": "dimension"}
_AXES = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
_PER_AXIS = {
    "slice": ("start_indices", "limit_indices", "strides"),
    "pad": ("padding_config",),
}


class Transposed(NamedTuple):
    """A step with its values of two axes transposed.

    Attributes:
      graph: the step.
      rows: its rows, in arrays that lie likewise.
      inputs: for each input or array that lies transposed, what it is the transpose of.
      weights: the same for weights.
    """

    graph: Graph
    rows: Rows
    inputs: dict[Var, Var]
    weights: dict[Var, Var]


def transposed(graph: Graph, rows: Rows) -> Transposed | None:
    """The step with its values of two axes transposed; None if that has no rule."""
    split = any(ops.is_split(ops.aval(v)) for v in graph.inputs)
    if split or not all(_can(eqn, graph) for eqn in graph.eqns):
        return None
    flat = filter(_flat, (*graph.carry, *graph.xs, *_arrays(rows)))
    names = {v: struct(v) for v in flat}
    names = variables_for({v: s.update(shape=s.shape[::-1]) for v, s in names.items()})
    matrices = transposes(
        v
        for eqn in graph.eqns
        for side, v in enumerate(eqn.invars)
        if v in graph.weights and _needs_transpose(eqn, side)
    )

    def run(values):
        env = {v: values[names.get(v, v)] for v in graph.inputs}
        lefts = {v: values[name] for v, name in matrices.items()}
        for eqn in graph.eqns:
            env.update(zip(eqn.outvars, _run(eqn, env, graph, lefts), strict=True))
        return [_read(a, env, graph) for a in graph.outs]

    new = [[names.get(v, v) for v in group] for group in (graph.carry, graph.xs)]
    made, consts = graph_of(run, (*graph.weights, *matrices.values()), *new)
    if consts:
        return None
    inputs, weights = ({n: v for v, n in m.items()} for m in (names, matrices))
    return Transposed(made, _renamed(rows, names), inputs, weights)


def _arrays(rows: Rows) -> list[Var]:
    """The variables that rows name, in an order that is the same in every process."""
    found = [*rows.over.values(), *rows.memory.values(), *rows.shifts, *rows.places]
    found += [shift.of for shift in rows.shifts.values()]
    return found + [place.whole for place in rows.places.values()]


def _flat(atom) -> bool:
    return ops.aval(atom).ndim == 2


def _is_vector(atom) -> bool:
    """Whether an axis has size 1, so that to transpose moves nothing."""
    return 1 in ops.aval(atom).shape


def _turns(eqn) -> bool:
    """Whether an equation has operands or results of two axes."""
    return any(_flat(a) for a in (*eqn.invars, *eqn.outvars))


def _can(eqn, graph) -> bool:
    """Whether there is a rule for an equation."""
    name = eqn.primitive.name
    weights = [a for a in variables(eqn.invars) if a in graph.weights and _flat(a)]
    if name == "dot_general":
        found = [i for i, a in enumerate(eqn.invars) if ops.is_matrix_of(eqn, i)]
        return len(found) == 2 and len(weights) == 1
    if not _turns(eqn):
        return True
    if not all(map(_is_vector, weights)):
        return False  # the step would transpose it again and again
    if name in ("broadcast_in_dim", "reshape", "squeeze"):
        return _moves_alone(eqn)
    if name in {*_AXIS, *_AXES, *_PER_AXIS}:
        return _flat(eqn.invars[0])
    return name in ops.ELEMENTWISE


def _moves_alone(eqn) -> bool:
    """Whether an equation that gives a value another shape can be transposed alone.

    With at most one axis longer than 1, a value has one order of its numbers.
    """
    (value, *more), (out,) = eqn.invars, eqn.outvars
    if eqn.primitive.name == "broadcast_in_dim":
        return not more and _flat(out)
    long = [n for n in ops.aval(value).shape if n != 1]
    return not more and (len(long) < 2 or ops.alike(value, out))


def _read(atom, env, graph):
    """The value of an atom, transposed if it has two axes."""
    if not isinstance(atom, Literal):
        if atom not in graph.weights or not _flat(atom):
            return env[atom]
        if _is_vector(atom):
            return lax.reshape(env[atom], _shape(atom))
        return lax.transpose(env[atom], (1, 0))
    return atom.val.T if _flat(atom) else atom.val


def _run(eqn, env, graph, lefts) -> list:
    """The results of an equation, from transposed operands."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        return [_product(eqn, env, graph, lefts)]
    values = [_read(a, env, graph) for a in eqn.invars]
    if not _turns(eqn):
        return eval_eqn(eqn, values)
    (out, *_) = eqn.outvars
    if name in ("reshape", "squeeze"):
        return [lax.reshape(values[0], _shape(out))]
    if name == "broadcast_in_dim":
        dims = params["broadcast_dimensions"]
        dims = tuple(1 - d for d in dims) if len(dims) == 1 and _flat(out) else dims
        params = params | {"broadcast_dimensions": dims, "shape": _shape(out)}
    elif _flat(eqn.invars[0]):
        params = params | _swapped(name, params)
    return eval_eqn(eqn.replace(params=params), values)


def _shape(atom) -> tuple[int, ...]:
    shape = ops.aval(atom).shape
    return shape[::-1] if len(shape) == 2 else shape


def _swapped(name, params) -> dict[str, Any]:
    """The parameters that name axes, for the axes in their new order."""
    if name in _AXIS:
        return {_AXIS[name]: 1 - params[_AXIS[name]]}
    if name in _AXES:
        return {"axes": tuple(sorted(1 - axis for axis in params["axes"]))}
    # The strides of a slice may be None.
    return {k: params[k] and params[k][::-1] for k in _PER_AXIS.get(name, ())}


def _product(eqn, env, graph, lefts):
    """`W.T @ h.T` for `h @ W`."""
    side = next(i for i, v in enumerate(eqn.invars) if v in graph.weights)
    matrix, data = eqn.invars[side], _read(eqn.invars[1 - side], env, graph)
    left = lefts[matrix] if _needs_transpose(eqn, side) else env[matrix]
    if ops.contracted_axis(eqn, 1 - side) == 0:
        data = lax.transpose(data, (1, 0))
    out = on_the_left(eqn, side, left, data)
    return out if side == 1 else lax.transpose(out, (1, 0))


def _needs_transpose(eqn, side) -> bool:
    """Whether an operand is a matrix that stands on the left only if transposed."""
    return ops.is_matrix_of(eqn, side) and ops.contracted_axis(eqn, side) == 0


def _renamed(rows: Rows, names: Mapping[Var, Var]) -> Rows:
    """The same rows, of arrays that lie transposed."""

    def new(v):
        return names.get(v, v)

    def place(p):
        axis = 1 - p.axis if _flat(p.whole) else p.axis
        return p._replace(whole=new(p.whole), axis=axis)

    return dataclasses.replace(
        rows,
        places={new(v): place(p) for v, p in rows.places.items()},
        shifts={new(v): s._replace(of=new(s.of)) for v, s in rows.shifts.items()},
        over={i: new(v) for i, v in rows.over.items()},
        memory={i: new(v) for i, v in rows.memory.items()},
    )
