"""Run a body as one kernel: all its steps, with weights and carry in fast memory.

The grid of the kernel is the sequence, with some steps at each point. The weights are
loaded into fast memory once and stay there, and so does the carry. Rows are loaded and
stored at each point.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Var

from scanrnn.executors._kernel_forms import Form, Matrix, forms, weights_of, whole
from scanrnn.executors._kernel_step import step
from scanrnn.executors._kernel_tiles import part_of
from scanrnn.executors._opened import opened
from scanrnn.machines import machine_for
from scanrnn.planner import ops
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.cuts import cut
from scanrnn.planner.graph import Graph, Values
from scanrnn.planner.rules import MB

# The most steps at a point of the grid. To start a point takes some hundred cycles.
MOST_STEPS = 16
# The share of the fast memory that the rows of a point may take.
_ROWS_SHARE = 0.25
# Memory for Mosaic itself.
_RESERVED = 8 * MB
_WIDE = ("int64", "uint64", "float64", "complex128")


class Layout(NamedTuple):
    """What a kernel holds in fast memory, and the steps at a point of its grid.

    Attributes:
      weights: the forms of the weights that a step reads, by variable.
      multiplied: the weights that are matrices read some rows at a time.
      carry: the forms of the carry.
      xs: the forms of a step's time inputs.
      ys: the forms of a step's ys.
      steps: the number of steps at a point of the grid, a divisor of the length.
      made: bytes of all values of a step, which may not fit the registers.
    """

    weights: dict[Var, Form]
    multiplied: set[Var]
    carry: list[Form]
    xs: list[Form]
    ys: list[Form]
    steps: int
    made: int

    @property
    def bytes(self) -> int:
        """Bytes of fast memory. Rows count twice: the next ones are loaded early."""
        held = [*self.weights.values(), *self.carry, *self.carry]
        rows = sum(f.bytes() for f in (*self.xs, *self.ys))
        return sum(f.bytes() for f in held) + 2 * self.steps * rows

    @property
    def asked_bytes(self) -> int:
        """Bytes of fast memory to ask for. XLA keeps other arrays in the rest.

        Without a rest, an LSTM (256, 64, 1024) takes 233 MB of temporaries and not 177.
        """
        return self.bytes + max(self.made, _RESERVED)


def layout(body: Body) -> tuple[Layout, int]:
    """The layout of the kernel for a part of a body's batch, and how many parts."""
    part, _, parts = part_of(opened(body)[0])
    return _layout(part), parts


def _layout(body: Body) -> Layout:
    graph = body.graph
    weights, matrices = weights_of(graph)
    carry, xs, ys = map(forms, (graph.carry, graph.xs, graph.ys))
    row = 2 * sum(f.bytes() for f in (*xs, *ys))
    most = int(_ROWS_SHARE * memory(body)) // max(row, 1)
    steps = cut(body.rows.length, min(MOST_STEPS, max(most, 1)))
    made = ops.bytes_in(v for e in graph.eqns for v in e.outvars)
    return Layout(weights, matrices, carry, xs, ys, steps, made)


def memory(body: Body) -> int:
    """Bytes of fast memory that a kernel may fill; on a CPU, those of a typical TPU."""
    machine = body.machine
    if machine is None or machine.platform != "tpu":
        machine = machine_for("tpu")
    return machine.fast_memory - _RESERVED


def run(
    body: Body,
    constants: Values,
    carry: list,
    arrays: Values,
    interpret: bool | pltpu.InterpretParams,
) -> Results:
    """Run a body over all its steps, as `Executor.lower` says.

    `interpret` says whether Pallas's interpreter runs it; `InterpretParams` are for the
    interpreter that simulates a TPU.
    """
    body, new = opened(body)
    constants = {**constants, **new}
    part, split, parts = part_of(body)
    if parts == 1:
        return _run(body, constants, carry, arrays, interpret)
    graph = body.graph
    xs = [body.rows.all(arrays, v) for v in graph.xs]
    weights = [constants[v] for v in graph.weights]
    at = [0 if v in split else None for v in graph.weights]
    alone = functools.partial(_part, part, interpret)
    return _in_parts(alone, parts, at, weights, carry, xs)


def _run(body, constants, carry, arrays, interpret) -> Results:
    """Run a body without calls as one kernel."""
    graph, rows, found = body.graph, body.rows, _layout(body)
    T, steps = rows.length, found.steps
    points = T // steps
    args = [f.stored(constants[v]) for v, f in found.weights.items()]
    args += [f.stored(c) for f, c in zip(found.carry, carry, strict=True)]
    xs = zip(found.xs, graph.xs, strict=True)
    args += [f.stored(rows.all(arrays, v), T) for f, v in xs]

    def row(form):
        zeros = (0,) * len(form.shape)
        last = points - 1
        at = (lambda t: (last - t, *zeros)) if rows.reverse else lambda t: (t, *zeros)
        return pl.BlockSpec((steps, *form.shape), at)

    held = (*found.weights.values(), *found.carry)
    ends = [f.struct() for f in found.carry]
    call = pl.pallas_call(
        functools.partial(_kernel, graph, found, rows.reverse),
        grid=(points,),
        in_specs=[*map(whole, held), *map(row, found.xs)],
        out_specs=[*map(whole, found.carry), *map(row, found.ys)],
        out_shape=[*ends, *(f.struct(T) for f in found.ys)],
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            vmem_limit_bytes=min(memory(body), found.asked_bytes),
        ),
        name="last_to_first" if rows.reverse else "first_to_last",
    )
    # If integers have 64 bits by default, Mosaic mistakes the types of indices.
    with jax.enable_x64(any(str(a.dtype) in _WIDE for a in args)):
        outs = call(*args)
    n = len(carry)
    final = [f.restored(a) for f, a in zip(found.carry, outs[:n], strict=True)]
    return final, [f.restored(a, T) for f, a in zip(found.ys, outs[n:], strict=True)]


def _part(body, interpret, weights, carry, xs):
    constants = dict(zip(body.graph.weights, weights, strict=True))
    arrays = dict(zip(body.graph.xs, xs, strict=True))
    return _run(body, constants, carry, arrays, interpret)


def _in_parts(run: Callable, parts: int, at: list, weights, carry, xs):
    """Run a loop for each part of a batch; by `vmap` the parts are an axis of the grid.

    The batch is axis `at` of each of the weights (None if it has none), the first axis
    of the carry, and the second one of xs.
    """

    def cut_up(array, axis):
        shape = array.shape
        new = (parts, shape[axis] // parts)
        return array.reshape((*shape[:axis], *new, *shape[axis + 1 :]))

    weights = [
        w if axis is None else cut_up(w, axis)
        for w, axis in zip(weights, at, strict=True)
    ]
    carry, xs = [cut_up(c, 0) for c in carry], [cut_up(x, 1) for x in xs]
    final, ys = jax.vmap(run, in_axes=(at, 0, 1), out_axes=(0, 1))(weights, carry, xs)
    final = [c.reshape(-1, *c.shape[2:]) for c in final]
    return final, [y.reshape(y.shape[0], -1, *y.shape[3:]) for y in ys]


def _kernel(graph: Graph, found: Layout, reverse: bool, *refs):
    """The steps of one point of the grid."""
    given = iter(refs)
    groups = found.weights, found.carry, found.xs, found.carry, found.ys
    weights, first, xs, carry, ys = ([next(given) for _ in g] for g in groups)

    @pl.when(pl.program_id(0) == 0)
    def start():
        for to, value in zip(carry, first, strict=True):
            to[...] = value[...]

    names = (*found.weights, *graph.carry, *graph.xs)
    constants = list(zip(found.weights.items(), weights, strict=True))

    def constant(item, ref):
        v, form = item
        return Matrix(form, ref) if v in found.multiplied else form.value(ref[...])

    def one(i, _):
        j = found.steps - 1 - i if reverse else i
        values = [constant(*item) for item in constants]
        values += [f.value(ref[...]) for f, ref in zip(found.carry, carry, strict=True)]
        values += [f.value(ref[j]) for f, ref in zip(found.xs, xs, strict=True)]
        made = step(graph, dict(zip(names, values, strict=True)))
        after, rows = made[: len(carry)], made[len(carry) :]
        for to, form, value in zip(carry, found.carry, after, strict=True):
            to[...] = form.held(value)
        for to, form, value in zip(ys, found.ys, rows, strict=True):
            to[j] = form.held(value)

    if found.steps == 1:
        one(0, None)
    else:
        lax.fori_loop(0, found.steps, one, None)
