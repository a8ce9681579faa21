"""Compile a case for a machine: the program of a contender in one mode."""

import dataclasses
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import scanrnn
from benchmarks import programs, steps
from benchmarks.cases import Case, Problem
from benchmarks.compiled import targets
from benchmarks.compiled.measure import LOOPS, ProgramCase
from benchmarks.contenders import _base, flax_nnx
from benchmarks.contenders.lax_scan import naive
from benchmarks.programs.measure import LEARNING_RATE


class Program(NamedTuple):
    """A compiled program.

    Attributes:
      text: its scheduled instructions.
      temp_bytes: bytes of temporaries, by the compiler's buffer assignment.
      lower_seconds: processor seconds of JAX and the planner before compilation.
      compile_seconds: processor seconds of the compiler.
      thunks: what XLA's runtime executes, as text; empty if it is not known.
    """

    text: str
    temp_bytes: int
    lower_seconds: float
    compile_seconds: float
    thunks: str = ""


def compile_(
    machine: str, case: Case | ProgramCase, mode: str, contender: str
) -> Program:
    """Compiles the training step or the forward pass of a case for a machine."""
    fn, args, donate = _program(case, mode, contender, machine)
    begin = processor_seconds()
    lowered = jax.jit(fn, donate_argnums=donate).lower(*args)
    middle = processor_seconds()
    options = targets.ALL[machine].options
    with tempfile.TemporaryDirectory() as folder:
        if targets.ALL[machine].has_thunks:
            # The expression matches no pass of XLA: only the thunks are written.
            options = options | {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "^$"}
        compiled = lowered.compile(compiler_options=options)
        end = processor_seconds()
        # The last file has the thunks after all of XLA's passes over them.
        paths = sorted(pathlib.Path(folder).glob("*.thunk_sequence*.txt"))
        thunks = paths[-1].read_text() if paths else ""
    return Program(
        compiled.as_text(),
        compiled.memory_analysis().temp_size_in_bytes,
        middle - begin,
        end - middle,
        thunks,
    )


def _program(case, mode, contender, machine):
    """The function, the shapes of its arguments, and which of them are donated."""
    fn, args, lr = _forward(case, contender, machine)
    donate = ()
    if mode == "train":
        args += [jax.eval_shape(fn, *args)]
        fn, donate = _base.train_step(fn, lr), (0,)
    sharding = targets.sharding(machine)
    structs = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), args
    )
    return fn, structs, donate


def _forward(case, contender, machine) -> tuple[Callable, list[Any], float]:
    """The forward function of a contender, its arguments, and the learning rate."""
    if isinstance(case, ProgramCase):
        program = _found(case.program)
        fn = program.apply
        if contender == "scanrnn":
            fn = scanrnn.accelerate(fn, plan=_options(machine))
        return fn, [program.params, program.inputs], LEARNING_RATE
    problem = shapes(case)
    model = _model(contender, problem, machine)
    return model.apply, [model.params, problem.xs], problem.lr


@functools.lru_cache(maxsize=1)
def _found(name):
    """A program of other people, with shapes in place of arrays, to save memory."""
    program = programs.find(name)
    params, inputs = jax.eval_shape(lambda *a: a, program.params, program.inputs)
    return program._replace(params=params, inputs=inputs)


def _options(machine):
    """Options that name the machine: no array is on it, so it cannot be found."""
    return scanrnn.Options(machine=targets.MACHINES[machine])


def shapes(case: Case) -> Problem:
    """A problem of zeros: nothing is ever run, and NumPy's zeros take no memory."""
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
    if contender in ("scanrnn", LOOPS):
        options = _options(machine)
        if contender == LOOPS:
            options = dataclasses.replace(options, implementation=LOOPS)
        return naive(problem, functools.partial(scanrnn.scan, plan=options))
    # Flax draws its own weights: only programs are compared, not values. So a cell
    # with other biases (the GRU) can take part.
    params, apply = flax_nnx.split(flax_nnx.layer(problem.case), problem.case)
    return _base.Model(params, apply, export=dict)


def processor_seconds():
    """Processor seconds of this process, its threads, and assemblers it started."""
    return sum(os.times()[:4])
