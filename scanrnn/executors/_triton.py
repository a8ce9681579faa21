"""Run a body as one kernel for a GPU: the loop over time is inside the kernel.

A kernel consists of programs that run side by side, each for a part of the batch. A
`View` says what part of each array a program has, and computes one step of its part.
The carry stays in registers. The rows of some steps are loaded before the first of
these steps, so that the loads overlap.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors._opened import opened
from scanrnn.planner import ops
from scanrnn.planner.around import joined, without
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.cuts import cut
from scanrnn.planner.graph import Graph, Values, eval_eqn, free, variables
from scanrnn.planner.over_time import stage_over_time
from scanrnn.planner.wide_sums import wide

# The steps whose rows are loaded together. A load takes as long as many steps.
MOST_STEPS = 8


class View(Protocol):
    """The part of a step that each program of a kernel runs."""

    @property
    def graph(self) -> Graph:
        """The step, without calls."""
        ...

    @property
    def programs(self) -> int:
        """The number of programs."""
        ...

    @property
    def warps(self) -> int:
        """The number of warps of a program."""
        ...

    @property
    def steps(self) -> int:
        """The most steps whose rows are loaded together."""
        ...

    def stored(self, v: Var) -> tuple[int, ...]:
        """The shape of a variable in memory, without the axis of time."""
        ...

    def places(self, names: Sequence[Var]) -> dict[Var, tuple]:
        """Inside the kernel: the indices of this program's part of each variable."""
        ...

    def weight(self, v: Var, ref, place: tuple) -> Any:
        """Inside the kernel: the value that a step reads for a weight."""
        ...

    def step(self, values: dict[Any, Any]) -> tuple[list, list]:
        """Inside the kernel: the next carry and the ys, given the inputs of a step."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A body as a kernel runs it.

    Attributes:
      graph: one step without calls, and without what only joins its ys.
      constants: the values of weights that are new in the graph.
      after: what runs after the kernel, for all steps at once.
    """

    graph: Graph
    constants: Values
    after: Graph


def prepared(body: Body) -> Prepared:
    """Open the calls of a body, and take out what only joins its ys."""
    body, constants = opened(body)
    graph, after = without(body.graph, joined(body.graph))
    return Prepared(graph, constants, after)


def run(
    body: Body,
    step: Prepared,
    view: View,
    constants: Values,
    carry: list,
    arrays: Values,
) -> Results:
    """Run a body, prepared as `step`, over all steps, as `Executor.lower` says.

    On a CPU, Pallas's interpreter runs it. The view is that of each program.
    """
    graph, T = view.graph, body.rows.length
    values, weights = {**constants, **step.constants}, read_weights(graph)
    args = [_stored(values[v], view.stored(v)) for v in weights]
    pairs = zip(carry, graph.carry, strict=True)
    args += [_stored(a, view.stored(v)) for a, v in pairs]
    rows = (body.rows.all(arrays, v) for v in step.graph.xs)
    pairs = zip(rows, graph.xs, strict=True)
    args += [_stored(a, (T, *view.stored(v))) for a, v in pairs]
    made = stacked(graph)
    shapes = [_struct(v, view.stored(v)) for v in graph.carry]
    shapes += [_struct(v, (T, *view.stored(v))) for v in made]
    assert body.machine is not None
    call = pl.pallas_call(
        functools.partial(_kernel, view, weights, T, body.rows.reverse),
        grid=(view.programs,),
        out_shape=shapes,
        interpret=body.machine.platform == "cpu",
        compiler_params=triton.CompilerParams(num_warps=view.warps, num_stages=1),
        name="last_to_first" if body.rows.reverse else "first_to_last",
    )
    with jax.enable_x64(any(a.dtype.itemsize == 8 for a in args)):
        outs = call(*args)
    pairs = zip(outs, step.graph.carry, strict=False)
    final = [_restored(a, ops.aval(v)) for a, v in pairs]
    found = dict(zip(made, outs[len(carry) :], strict=True))
    pairs = zip(step.after.xs, graph.ys, strict=True)
    row_ys = {v: _row(v, y, found, T) for v, y in pairs}
    return final, stage_over_time(step.after, row_ys, T)


def _row(v: Var, y: Any, found: Mapping[Any, Any], T: int):
    """The rows of one of the ys, which may be a constant in the kernel's step."""
    if ops.is_literal(y):
        return jnp.full(T, y.val, ops.aval(y).dtype)
    return _restored(found[y], ops.aval(v), T)


def read_weights(graph: Graph) -> list[Var]:
    """The weights that a step reads."""
    read = free(graph.eqns, graph.outs)
    return [v for v in graph.weights if v in read]


def stacked(graph: Graph) -> list[Var]:
    """What a step stacks, each variable once."""
    return [*dict.fromkeys(variables(graph.ys))]


def _struct(v: Var, shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, _held(ops.aval(v).dtype))


def _held(dtype):
    """The dtype in memory: Triton does not load booleans."""
    return jnp.dtype("int8") if dtype == jnp.bool_ else dtype


def loaded(v: Var, value):
    """The value of a variable, from one that is read from memory."""
    return value != 0 if ops.aval(v).dtype == jnp.bool_ else value


def _stored(array, shape):
    array = jnp.asarray(array)
    return jnp.reshape(array.astype(_held(array.dtype)), shape)


def _restored(array, aval, *lead):
    return lax.reshape(array, (*lead, *aval.shape)).astype(aval.dtype)


def _kernel(view: View, weights: list[Var], length: int, reverse: bool, *refs):
    """All steps of the part of one program."""
    graph, given = view.graph, iter(refs)
    made = stacked(graph)
    at = view.places((*weights, *graph.carry, *graph.xs, *made))
    groups = weights, graph.carry, graph.xs, graph.carry, made
    ins, first, xs, last, ys = ([next(given) for _ in g] for g in groups)
    steps = cut(length, view.steps)

    def load(v, ref, *t):
        return loaded(v, ref[(*t, *at[v])])

    def trip(i, carry):
        times = [i * steps + j for j in range(steps)]
        if reverse:
            times = [length - 1 - t for t in times]
        rows = [[load(v, ref, t) for v, ref in zip(graph.xs, xs, strict=True)]
                for t in times]  # fmt: skip
        for t, row in zip(times, rows, strict=True):
            values = dict(zip((*graph.carry, *graph.xs), (*carry, *row), strict=True))
            carry, rows_out = view.step(constants | values)
            for v, ref in zip(made, ys, strict=True):
                ref[(t, *at[v])] = rows_out[graph.ys.index(v)].astype(ref.dtype)
        return tuple(carry)

    pairs = list(zip(weights, ins, strict=True))
    constants = {v: view.weight(v, ref, at[v]) for v, ref in pairs}
    carry = tuple(map(load, graph.carry, first))
    carry = lax.fori_loop(jnp.int32(0), jnp.int32(length // steps), trip, carry)
    for v, ref, value in zip(graph.carry, last, carry, strict=True):
        ref[at[v]] = value.astype(ref.dtype)


def computed(eqn: JaxprEqn, ins: Sequence):
    """The result of an equation; half precision is computed in float32, and rounded."""
    dtype = ops.aval(eqn.outvars[0]).dtype
    if eqn.primitive.name != "convert_element_type":
        ins = [jnp.asarray(a) for a in ins]
        ins = [a.astype(wide(a.dtype)) for a in ins]
    (out,) = eval_eqn(eqn, ins)
    return out.astype(dtype)
