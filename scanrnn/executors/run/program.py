"""Run a plan: the work before the loop, the loop, the work after it, in chunks.

Stages, derivatives, batching and sharding are here and in the modules that this one
imports, once for all executors. An executor only has rules, and lowers bodies.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

from scanrnn.executors import planned, scan
from scanrnn.executors._executor import Executor, target_of
from scanrnn.executors.run.chunks import in_chunks
from scanrnn.executors.run.loop import run_loop
from scanrnn.executors.run.names import is_divided, named, typed, types_of
from scanrnn.executors.run.normed import normed
from scanrnn.executors.run.ruled import Ruled, ruled_p
from scanrnn.machines import Machine
from scanrnn.planner.bodies import Body
from scanrnn.planner.emit import for_values, plain
from scanrnn.planner.ir.graph import Env
from scanrnn.planner.motion.over_time import (
    checkpointed,
    keep_inputs,
    keep_products,
    stage_over_time,
)
from scanrnn.planner.plan import Plan
from scanrnn.planner.report import running


def _keep_loops(primitive, *args, **params) -> bool:
    """A policy for `jax.checkpoint`: keep the outputs of loops."""
    del args
    return primitive is ruled_p and params["program"].loop


# Policies for what is kept of a run over a chunk; the rest is recomputed.
_KEEP = {"chunked": keep_inputs, "recompute": _keep_loops}


@dataclasses.dataclass(frozen=True, eq=False)
class Runner:
    """An executor as a plan holds it: with its name, and a way to run plans."""

    executor: Executor

    @property
    def name(self) -> str:
        """The name of the executor."""
        return self.executor.NAME

    @property
    def whole(self) -> bool:
        """Whether it runs whole plans by a program of its own, without bodies."""
        return hasattr(self.executor, "run")

    def describe(self, plan: Plan) -> list[str]:
        """How it runs a whole plan, in words."""
        tell = getattr(self.executor, "describe", None)
        return tell(plan) if tell else []

    def runs_in_parallel(self, body: Body) -> bool | None:
        """Whether it runs a body in parallel over time; None if it never does so."""
        asked = getattr(self.executor, "runs_in_parallel", None)
        return asked(body) if asked else None

    def run(
        self, plan: Plan, weights: list, init: list, xs: list, differentiated=False
    ):
        """Run a plan on flat values. Returns the final carry and the ys, flat.

        `differentiated` says that JAX will differentiate the program.
        """
        if self.whole:
            whole = cast(Any, self.executor).run
            carry, ys = whole(plan, weights, init, xs, differentiated)
        else:
            run = functools.partial(_run, plan, self.executor, differentiated)
            carry, ys = _run_plan(run, plan, weights, init, xs, differentiated)
        # Buffers of all steps have no weak types, and results of the step may have.
        return typed(carry, plan.source.carry_out), typed(ys, plan.source.ys)


def _run_plan(run, plan, weights, init, xs, differentiated):
    stages, (values, moving) = plan.stages, entering(plan, weights, init)
    assert stages is not None
    carry = [init[i] for i in moving]
    constants = Env(stages.constants.eqns, values).read_all(stages.constants.ys)
    # `_keep_loops` knows only loops with the planner's derivative rule.
    recomputes = plan.defer or plan.residuals == "chunked"
    keep = _KEEP.get(plan.residuals) if recomputes else None
    program = _whole(plan, run, plan.loops, keep)
    if plan.value_loops and not is_divided([*constants, *carry, *xs]):
        for_values = _whole(plan, run, plan.value_loops)
        types = types_of(stages.graph, plan.length) if differentiated else ()
        program = with_values_by(for_values, program, plan.machine, types)
    carry, ys = program(constants, carry, xs)
    final = dict(enumerate(init)) | dict(zip(moving, carry, strict=True))
    return list(final.values()), ys


def entering(plan: Plan, weights: list, init: list) -> tuple[dict, list[int]]:
    """The values of the weights of a step by variable, and the leaves that change."""
    assert plan.stages is not None
    weights = [*weights, *(init[i] for i in plan.invariant), *plan.consts]
    moving = [i for i in range(len(init)) if i not in plan.invariant]
    return named(plan.stages.graph.weights, weights), moving


def _whole(plan, run, loops, keep=None) -> Callable:
    """The program of all steps: one run of the loop, or one for each chunk."""
    programs = [functools.partial(run, loop) for loop in loops]
    if keep is not None:
        programs = [checkpointed(program, keep) for program in programs]
    sizes = plan.length, loops[0].length
    if sizes[0] == sizes[1]:
        return programs[0]
    return functools.partial(in_chunks, programs, sizes, plan.reverse)


def with_values_by(
    values: Callable, program: Callable, machine: Machine, types: tuple
) -> Callable:
    """A program that runs `values` without a gradient, and `program` with one.

    Both are functions `(weights, carry, xs) -> (carry, ys)` with equal results. A
    gradient reads again what was computed before the loop. Without one that memory
    would be wasted, so `values` does the work for a few steps at a time.
    """

    def either(weights, carry, xs):
        n, m = len(weights), len(weights) + len(carry)

        def flat(run):
            def outs(*args):
                final, ys = run(*map(list, (args[:n], args[n:m], args[m:])))
                return [*final, *ys]

            return outs

        def build(where, alone):
            # Several devices may share the steps, so these are not cut into chunks.
            return flat(values if alone and where == machine else program)

        run = Ruled(flat(program), build, machine, types=types)
        outs = run(*weights, *carry, *xs)
        return outs[: len(carry)], outs[len(carry) :]

    return either


def without_gradient_by_loop(
    plan: Plan, program: Callable, args: tuple, differentiated: bool
):
    """Run `program`; without a gradient on one device, the planned loop in its place.

    `args` are weights, carry and xs. Returns the final carry and the ys, flat.
    """
    if is_divided(args):
        return program(*args)
    loop = functools.partial(Runner(cast(Any, planned)).run, plan)
    types = types_of(plan.source, plan.length) if differentiated else ()
    return with_values_by(loop, program, plan.machine, types)(*args)


def told_without_gradient(plan: Plan) -> list[str]:
    """A line for each loop that runs if there is no gradient."""
    target = target_of(cast(Any, planned), plan.loop, plan.machine, True)
    return running.loops(plan, for_values(plan, target))


def _run(plan, executor, differentiated, loop, constants, init, xs):
    stages = plan.stages
    values = named((*stages.constants.ys, *stages.graph.xs), (*constants, *xs))

    # Of the work outside the loop, keep the results of contractions.
    policy = None if plan.residuals == "everything" else keep_products

    def stage(graph):
        return stage_over_time(graph, values, loop.length, policy)

    values |= named(stages.before.ys, stage(stages.before))
    graph = stages.norms
    inputs = [values[v] for v in graph.inputs]
    # The norms before the loop run in pieces if that pays, else at once.
    if loop.norm_steps is None or is_divided(inputs):
        made = stage(graph)
    else:
        made = normed(graph, loop, executor, inputs, differentiated)
    values |= named(graph.ys, made)
    graph = stages.loop
    if plan.defer:
        weights, xs = ([values[v] for v in of] for of in (graph.weights, graph.xs))
        final, ys = run_loop(loop, executor, weights, init, xs, differentiated)
    else:
        body = plain(graph, loop.length, loop.reverse, loop.unroll)
        final, ys = scan.lower(body, values, init, values)
    values |= named(graph.ys, ys)
    return final, stage(stages.after)
