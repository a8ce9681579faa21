"""Run a body as one kernel for a GPU: the loop over time is inside the kernel.

A kernel consists of programs that run side by side, each for a part of the batch. A
`View` says what part of each array a program has, and computes one step of its part.
The carry stays in registers. The rows of some steps are loaded before the first of
these steps, so that the loads overlap, and if a view says so, while the steps before
them are computed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors.gpu import together
from scanrnn.executors.gpu.captured import carries_captured
from scanrnn.executors.gpu.view import (
    ExchangingView,
    View,
    keeping_nan,
    loaded,
    read_weights,
)
from scanrnn.executors.kernels.opened import opened
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.integers import divisor
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, Values, eval_eqn, variables
from scanrnn.planner.motion.around import joins_after, output_joins
from scanrnn.planner.motion.over_time import stage_over_time
from scanrnn.planner.passes.wide_sums import wide

# The steps whose rows are loaded together. A load takes as long as many steps.
MOST_STEPS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A body as a kernel runs it.

    Attributes:
      graph: one step without calls, and without what only joins its ys.
      captured: the weights of the body that are the last leaves of its carry.
      constants: the values of weights that are new in the graph.
      after: what runs after the kernel, for all steps at once.
    """

    graph: Graph
    captured: Sequence[Var]
    constants: Values
    after: Graph


def prepared(body: Body, captures: bool = True) -> Prepared:
    """Open the calls of a body, and take out what only joins its ys.

    If `captures`, arrays that have a batch become leaves of the carry.
    """
    body, constants = opened(body)
    graph, after = joins_after(body.graph, output_joins(body.graph))
    step = carries_captured(graph) if captures else (graph, ())
    return Prepared(*step, constants, after)


def run(
    body: Body,
    step: Prepared,
    view: View,
    constants: Values,
    carry: list,
    arrays: Values,
) -> Results:
    """Run a body, prepared as `step`, over all steps, as `Executor.lower` says.

    On a CPU Pallas's interpreter runs it; kernels that exchange run by `together`. The
    view is that of each program.
    """
    graph, T = step.graph, body.rows.length
    values, forms = {**constants, **step.constants}, view.form
    weights, made = read_weights(graph), variables(graph.ys)
    args = [forms(v).stored(values[v]) for v in weights]
    carry = [*carry, *(values[v] for v in step.captured)]
    pairs = zip(carry, graph.carry, strict=True)
    args += [forms(v).stored(a) for a, v in pairs]
    args += [forms(v).stored(body.rows.all(arrays, v), T) for v in graph.xs]
    shapes = [forms(v).struct() for v in graph.carry]
    shapes += [forms(v).struct(T) for v in made]
    assert body.machine is not None
    interpret = body.machine.platform == "cpu"
    if interpret:
        # XLA for CPU has no product of a transposed matrix in half precision.
        args = lax.optimization_barrier(args)
    groups = (*weights, *graph.carry, *graph.xs), graph.carry, made
    given = groups, T, body.rows.reverse, args
    inside = (ops.aval(v) for e in graph.eqns for v in e.outvars)
    types = (*args, *shapes, *inside)
    with jax.enable_x64(any(a.dtype.itemsize == 8 for a in types)):
        if interpret and isinstance(view, ExchangingView):
            outs = together.run(view, *given)
        else:
            outs = _called(view, shapes, interpret, *given)
    pairs = zip(body.graph.carry, outs, strict=False)
    final = [forms(v).restored(a) for v, a in pairs]
    pairs = zip(made, outs[len(carry) :], strict=True)
    row_ys = {v: forms(v).restored(a, T) for v, a in pairs}
    return final, stage_over_time(step.after, row_ys, T)


def _called(
    view: View, shapes: Sequence, interpret: bool, groups: Sequence, T, reverse, args
) -> Sequence:
    """The outs of the kernel, whose types are `shapes`."""
    # A later version of JAX will have no Triton.
    from jax.experimental.pallas import triton

    # Arrays through which programs exchange. The last one counts, from zero.
    shared = view.shared() if isinstance(view, ExchangingView) else []
    counter = [jnp.zeros(s.shape, s.dtype) for s in shared[-1:]]
    place = len(shapes) + len(shared) - 1
    call = pl.pallas_call(
        functools.partial(_kernel, view, groups, T, reverse),
        grid=view.grid,
        out_shape=[*shapes, *shared],
        input_output_aliases={len(args): place} if shared else {},
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=view.warps, num_stages=1),
        name="last_to_first" if reverse else "first_to_last",
    )
    return call(*args, *counter)[: len(shapes)]


def _kernel(view: View, groups: Sequence, length: int, reverse: bool, *refs):
    """All steps of the part of one program; `groups` says what the arrays are."""
    graph, given = view.graph, iter(refs)
    of_args, *of_outs = groups
    arrays = {v: next(given) for v in of_args}
    if isinstance(view, ExchangingView):
        next(given)  # the counter as an argument; it is the last out, too
    last, ys = ({v: next(given) for v in group} for group in of_outs)
    shared = list(given)
    pieces = dict(zip(graph.inputs, view.inputs, strict=True))
    weights = read_weights(graph)
    read = (*weights, *graph.carry, *graph.xs)
    at = dict(zip(read, view.places([pieces[v] for v in read]), strict=True))
    rows_at = list(zip(view.ys, view.places(view.ys), strict=True))
    steps = divisor(length, view.steps)
    trips = length // steps

    def given_for(v, *t):
        return view.read(v, arrays[pieces[v].array], (*t, *at[v]))

    def store(t, k, value):
        piece, place = rows_at[k]
        ref = ys[piece.array]
        ref[(t, *place)] = value.astype(ref.dtype)

    def times(i):
        found = [i * steps + j for j in range(steps)]
        return [length - 1 - t for t in found] if reverse else found

    def rows(i):
        return [[given_for(v, t) for v in graph.xs] for t in times(i)]

    def trip(i, state):
        carry, given = state
        ahead = rows(jnp.minimum(i + 1, trips - 1)) if view.loads_ahead else None
        for j, (t, row) in enumerate(zip(times(i), given or rows(i), strict=True)):
            values = dict(zip((*graph.carry, *graph.xs), (*carry, *row), strict=True))
            exchange = None
            if isinstance(view, ExchangingView):
                exchange = view.exchange(shared, i * steps + j)
            put = functools.partial(store, t)
            carry = view.step(constants | values, put, exchange)
        return tuple(carry), ahead

    constants = {v: given_for(v) for v in weights}
    carry = tuple(loaded(v, arrays[pieces[v].array][at[v]]) for v in graph.carry)
    state = carry, rows(0) if view.loads_ahead else None
    carry, _ = lax.fori_loop(jnp.int32(0), jnp.int32(trips), trip, state)
    for v, value in zip(graph.carry, carry, strict=True):
        ref = last[pieces[v].array]
        ref[at[v]] = value.astype(ref.dtype)


def computed(eqn: JaxprEqn, ins: Sequence):
    """The result of an equation; half precision is computed in float32, and rounded."""
    dtype = ops.aval(eqn.outvars[0]).dtype
    if eqn.primitive.name != "convert_element_type":
        ins = [jnp.asarray(a) for a in ins]
        ins = [a.astype(wide(a.dtype)) for a in ins]
    return _evaluated(eqn, ins).astype(dtype)


def _evaluated(eqn: JaxprEqn, ins: Sequence):
    """The result of an equation, also where Triton's differs from XLA's.

    Triton's maximum and minimum drop NaN, and they are not for booleans. It selects one
    of two cases by a boolean, and has no copies.
    """
    name, dtype = eqn.primitive.name, ops.aval(eqn.outvars[0]).dtype
    if name in ("max", "min") and dtype == jnp.bool_:
        return ins[0] | ins[1] if name == "max" else ins[0] & ins[1]
    if name == "copy":
        return ins[0]
    if name == "select_n" and ins[0].dtype != jnp.bool_:
        which, out, *others = ins
        for k, case in enumerate(others, 1):
            out = jnp.where(which == k, case, out)
        return out
    (out,) = eval_eqn(eqn, ins)
    if not jnp.issubdtype(dtype, jnp.floating):
        return out
    if name in ("max", "min", "clamp"):
        for atom, value in zip(eqn.invars, ins, strict=True):
            if not ops.is_literal(atom):
                out = jnp.where(value != value, value, out)
    elif name in ("reduce_max", "reduce_min"):
        out = keeping_nan(out, ins[0], eqn.params["axes"])
    return out
