"""Run a body as one kernel: all its steps, with weights and carry in fast memory.

The grid of the kernel is the parts of the batch, and the sequence, with some steps at
each point. The weights are loaded into fast memory once and stay there, and so does the
carry. Rows are loaded and stored at each point.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Var

from scanrnn.executors.kernels.forms import (
    Form,
    Matrix,
    forms,
    of_its_part,
    weights_of,
    whole,
)
from scanrnn.executors.kernels.opened import opened
from scanrnn.executors.kernels.step import step
from scanrnn.executors.kernels.tiles import part_of
from scanrnn.machines import machine_for
from scanrnn.planner.bodies import Body, Results
from scanrnn.planner.integers import divisor
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Graph, Values
from scanrnn.planner.rule_groups import MB

# The most steps at a point of the grid. To start a point takes some hundred cycles.
MOST_STEPS = 16
# The share of the fast memory that the rows of a point may take.
_ROWS_SHARE = 0.25
# Memory for Mosaic itself.
_RESERVED = 8 * MB
_WIDE = ("int64", "uint64", "float64", "complex128")


class FastMemory(NamedTuple):
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


def layout(body: Body) -> tuple[FastMemory, int]:
    """The layout of the kernel for a part of a body's batch, and how many parts."""
    part, _, parts = part_of(opened(body)[0])
    return _layout(part), parts


def _layout(body: Body) -> FastMemory:
    graph = body.graph
    weights, matrices = weights_of(graph)
    carry, xs, ys = map(forms, (graph.carry, graph.xs, graph.ys))
    row = 2 * sum(f.bytes() for f in (*xs, *ys))
    most = int(_ROWS_SHARE * memory(body)) // max(row, 1)
    steps = divisor(body.rows.length, min(MOST_STEPS, max(most, 1)))
    made = ops.bytes_in(v for e in graph.eqns for v in e.outvars)
    return FastMemory(weights, matrices, carry, xs, ys, steps, made)


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
    constants, rows = {**constants, **new}, body.rows
    part, split, parts = part_of(body)
    graph, found, T = part.graph, _layout(part), rows.length
    grid = parts, T // found.steps

    def row(form):
        at = _rows(form, grid[1] - 1 if rows.reverse else None)
        return pl.BlockSpec((found.steps, None, *form.shape), at)

    of_part = dict(zip(graph.weights, body.graph.weights, strict=True))
    args, places = [], []
    for v, form in found.weights.items():
        is_split = of_part[v] in split
        lead = (parts,) if is_split else ()
        args.append(form.stored(constants[of_part[v]], *lead))
        places.append(of_its_part(form) if is_split else whole(form))
    ends = [of_its_part(form) for form in found.carry]
    args += [f.stored(c, parts) for f, c in zip(found.carry, carry, strict=True)]
    xs = [rows.all(arrays, v) for v in body.graph.xs]
    args += [f.stored(x, T, parts) for f, x in zip(found.xs, xs, strict=True)]
    call = pl.pallas_call(
        functools.partial(_kernel, graph, found, rows.reverse),
        grid=grid,
        in_specs=[*places, *ends, *map(row, found.xs)],
        out_specs=[*ends, *map(row, found.ys)],
        out_shape=[
            *(f.struct(parts) for f in found.carry),
            *(f.struct(T, parts) for f in found.ys),
        ],
        input_output_aliases=_reused(body, found, len(args) - len(xs)),
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(memory(body), found.asked_bytes),
        ),
        name="last_to_first" if rows.reverse else "first_to_last",
    )
    # If integers have 64 bits by default, Mosaic mistakes the types of indices.
    with jax.enable_x64(any(str(a.dtype) in _WIDE for a in args)):
        outs = call(*args)
    return _restored(body.graph, outs, T)


def _reused(body: Body, found: FastMemory, first: int) -> dict[int, int]:
    """The outputs that take the memory of rows that nothing reads later.

    A point writes its rows after it has read them, and no other point reads them.

    Returns:
      For some arguments, by index, the index of the output. The time inputs are the
      arguments from `first` on.
    """
    at, n = {v: i for i, v in enumerate(body.graph.xs)}, len(found.carry)
    pairs = [(i, at[v]) for i, v in body.rows.over.items() if v in at]
    return {first + j: n + i for i, j in pairs}


def _rows(form: Form, last: int | None):
    """Where the rows of a point lie. In reverse, `last` is the point of the first."""

    def at(part, point):
        first = point if last is None else last - point
        return first, part, *(0,) * len(form.shape)

    return at


def _restored(graph: Graph, outs: list, length: int) -> Results:
    """The final carry and the ys of the whole batch."""
    n = len(graph.carry)
    final = zip(forms(graph.carry), outs[:n], strict=True)
    ys = zip(forms(graph.ys), outs[n:], strict=True)
    return [f.restored(a) for f, a in final], [f.restored(a, length) for f, a in ys]


def _kernel(graph: Graph, found: FastMemory, reverse: bool, *refs):
    """The steps of one point of the grid."""
    given = iter(refs)
    groups = found.weights, found.carry, found.xs, found.carry, found.ys
    weights, first, xs, carry, ys = ([next(given) for _ in g] for g in groups)

    @pl.when(pl.program_id(1) == 0)
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
