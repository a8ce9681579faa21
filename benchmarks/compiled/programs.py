"""A case as a program to compile: who runs it, and in which mode."""

import functools
import os
from typing import Any, NamedTuple

import jax
import numpy as np

import scanrnn
from benchmarks import steps
from benchmarks.cases import Case, Problem
from benchmarks.compiled import targets
from benchmarks.contenders import _base, flax_nnx
from benchmarks.contenders.lax_scan import naive


class Program(NamedTuple):
    """What the compiler made.

    Attributes:
      text: scheduled instructions.
      temp_bytes: of temporaries by its buffer assignment.
      lower_seconds: of processors, that JAX and the planner took before.
      compile_seconds: of processors, that the compiler took.
    """

    text: str
    temp_bytes: int
    lower_seconds: float
    compile_seconds: float


def compile_(machine: str, case: Case, mode: str, contender: str) -> Program:
    """Compiles the training step or the forward pass of a case for a machine."""
    fn, args, donate = _program(case, mode, contender, machine)
    begin = _processor_seconds()
    lowered = jax.jit(fn, donate_argnums=donate).lower(*args)
    middle = _processor_seconds()
    compiled = lowered.compile(compiler_options=targets.TARGETS[machine].options)
    end = _processor_seconds()
    return Program(
        compiled.as_text(),
        compiled.memory_analysis().temp_size_in_bytes,
        middle - begin,
        end - middle,
    )


def _program(case, mode, contender, machine):
    """The function, shapes of its arguments, and which of them are donated."""
    problem = shapes(case)
    model, sharding = _model(contender, problem, machine), targets.sharding(machine)
    args: list[Any] = [model.params, problem.xs]
    fn, donate = model.apply, ()
    if mode == "train":
        args += [problem.target]
        fn, donate = _base.train_step(model.apply, problem.lr), (0,)
    structs = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), args
    )
    return fn, structs, donate


def shapes(case: Case) -> Problem:
    """A problem of zeros: nothing is ever run, and zeros take no memory."""
    weights = steps.CELLS[case.cell].shapes(case.D, case.H)
    return Problem(
        case,
        {name: np.zeros(shape, np.float32) for name, shape in weights.items()},
        np.zeros((case.T, case.B, case.D), np.float32),
        np.zeros((case.T, case.B, case.H), np.float32),
    )


def _model(contender, problem, machine):
    if contender == "lax_scan":
        return naive(problem, jax.lax.scan)
    if contender == "scanrnn":
        # No array is on the machine: it has to be said.
        planned = scanrnn.Options(machine=targets.MACHINES[machine])
        return naive(problem, functools.partial(scanrnn.scan, plan=planned))
    # Its own weights: programs are compared, not values, so that a cell with other
    # biases (the GRU) can take part.
    params, apply = flax_nnx.split(flax_nnx.layer(problem.case), problem.case)
    return _base.Model(params, apply, export=dict)


def _processor_seconds():
    """Of this process, all its threads, and the assemblers that it started."""
    return sum(os.times()[:4])
