"""A body as one kernel: all its steps, with weights and carry in fast memory.

The grid is the sequence, some steps at each point of it. What a step reads of weights
is brought in once and stays; the carry stays where it is; rows come and go.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Var

from scanrnn.executors._kernel_step import step
from scanrnn.planner import ops
from scanrnn.planner.bodies import Body
from scanrnn.planner.graph import Graph


class Form(NamedTuple):
    """How a kernel holds values of a type: with two axes at least, and no booleans."""

    shape: tuple[int, ...]
    dtype: Any
    aval: Any

    @classmethod
    def of(cls, v) -> Form:
        """The form of a variable."""
        aval = ops.aval(v)
        dtype = jnp.dtype("int32") if aval.dtype == bool else aval.dtype
        lead = (1,) * (2 - len(aval.shape))
        return cls((*lead, *aval.shape), dtype, aval)

    def stored(self, array, *lead):
        """Values as a kernel holds them, with more axes in front."""
        return lax.reshape(array.astype(self.dtype), (*lead, *self.shape))

    def restored(self, array, *lead):
        """What a kernel gave, as it is outside of it."""
        return lax.reshape(array, (*lead, *self.aval.shape)).astype(self.aval.dtype)


def run(
    body: Body,
    constants: Mapping[Var, Any],
    carry: list,
    known: Mapping[Var, Any],
    steps: int,
    interpret: bool,
    params: Any,
) -> tuple[list, list]:
    """Run a body over all its steps. Returns the final carry and the stacked ys.

    Args:
      body: the loop.
      constants: values of its weights.
      carry: values of its carry before the first step.
      known: arrays of all steps, and edges, by variable.
      steps: at each point of the grid, a divisor of all.
      interpret: run it by Pallas's interpreter.
      params: of the compiler.
    """
    graph, rows = body.graph, body.rows
    T, points = rows.length, rows.length // steps
    forms = [list(map(Form.of, g)) for g in (graph.weights, graph.carry, graph.xs)]
    stacked = list(map(Form.of, graph.ys))
    args = [f.stored(constants[v]) for f, v in zip(forms[0], graph.weights, strict=True)]
    args += [f.stored(c) for f, c in zip(forms[1], carry, strict=True)]
    args += [
        f.stored(rows.all(known, v), T) for f, v in zip(forms[2], graph.xs, strict=True)
    ]
    at = (lambda t: points - 1 - t) if rows.reverse else (lambda t: t)

    def row(form):
        zeros = (0,) * len(form.shape)
        return pl.BlockSpec((steps, *form.shape), lambda t: (at(t), *zeros))

    outs = pl.pallas_call(
        functools.partial(_kernel, graph, forms, stacked, steps, rows.reverse),
        grid=(points,),
        in_specs=[*map(_whole, (*forms[0], *forms[1])), *map(row, forms[2])],
        out_specs=[*map(_whole, forms[1]), *map(row, stacked)],
        out_shape=[
            *(jax.ShapeDtypeStruct(f.shape, f.dtype) for f in forms[1]),
            *(jax.ShapeDtypeStruct((T, *f.shape), f.dtype) for f in stacked),
        ],
        interpret=interpret,
        compiler_params=params,
        name="last_to_first" if rows.reverse else "first_to_last",
    )(*args)
    n = len(carry)
    final = [f.restored(a) for f, a in zip(forms[1], outs[:n], strict=True)]
    return final, [f.restored(a, T) for f, a in zip(stacked, outs[n:], strict=True)]


def _whole(form: Form) -> pl.BlockSpec:
    """All of an array, at every point of the grid; there once, as it never changes."""
    zeros = (0,) * len(form.shape)
    return pl.BlockSpec(form.shape, lambda t: zeros, pipeline_mode=pl.Buffered(1))


def _kernel(graph: Graph, forms, stacked, steps, reverse, *refs):
    """The steps of one point of the grid."""
    groups, at = [], 0
    for size in (*map(len, forms), len(forms[1]), len(stacked)):
        groups.append(refs[at : at + size])
        at += size
    weights, first, xs, carry, ys = groups

    @pl.when(pl.program_id(0) == 0)
    def start():
        for to, value in zip(carry, first, strict=True):
            to[...] = value[...]

    constants = {
        v: _value(form, ref[...])
        for v, form, ref in zip(graph.weights, forms[0], weights, strict=True)
    }
    for j in range(steps)[:: -1 if reverse else 1]:
        values = [_value(f, ref[...]) for f, ref in zip(forms[1], carry, strict=True)]
        values += [_value(f, ref[j]) for f, ref in zip(forms[2], xs, strict=True)]
        names = (*graph.carry, *graph.xs)
        made = step(graph, {**constants, **dict(zip(names, values, strict=True))})
        for to, form, value in zip(carry, forms[1], made, strict=False):
            to[...] = _held(form, value)
        for to, form, value in zip(ys, stacked, made[len(carry) :], strict=True):
            to[j] = _held(form, value)


def _value(form: Form, held):
    """A value as the step knows it."""
    value = held if form.shape == form.aval.shape else held.reshape(form.aval.shape)
    return value != 0 if form.aval.dtype == bool else value


def _held(form: Form, value):
    value = jnp.asarray(value, form.aval.dtype)
    return value.astype(form.dtype).reshape(form.shape)
