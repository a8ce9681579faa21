"""A recurrence, and the linear recurrence of the changes of its carry."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Var

from scanrnn.executors import associative
from scanrnn.executors.parallel import all_steps
from scanrnn.executors.parallel.scans import before
from scanrnn.planner.emit import plain
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Graph, Values, struct, variables_like
from scanrnn.planner.ir.retrace import graph_of
from scanrnn.planner.ir.rows import Rows
from scanrnn.planner.parallel import affine
from scanrnn.planner.parallel.obstacles import DRAWS
from scanrnn.planner.rule_groups import ScanRules


class Problem(NamedTuple):
    """A recurrence, and the linear recurrence of the changes of its carry.

    Attributes:
      graph: one step of the recurrence.
      length: the number of steps.
      linear: one step of the changes. It reads the carry before the step and the
        residual of the step.
      consts: constants of `linear`, by variable.
      read: the variables of the residuals in `linear`.
      scans: which form a scan takes on the machine.
    """

    graph: Graph
    length: int
    linear: Graph
    consts: Values
    read: tuple[Var, ...]
    scans: ScanRules

    def at_all_steps(self, wanted, values, init, h) -> list:
        """Values of all steps, given the carry after each step."""
        arrays = {**values, **self._before(init, h)}
        return all_steps.over_time(self.graph, wanted, arrays, self.length)

    def residuals(self, values, init, h) -> list:
        """The carry that each step computes, minus the guessed carry after it."""
        made = self.at_all_steps(self.graph.carry_out, values, init, h)
        return [lax.sub(a, b) for a, b in zip(made, h, strict=True)]

    def change(self, values, residuals, init, h) -> list:
        """The changes of all carries that cancel the residuals, to first order."""
        arrays = {**values, **self.consts, **self._before(init, h)}
        arrays |= dict(zip(self.read, residuals, strict=True))
        start = [jnp.zeros_like(a) for a in init]
        constants = {v: arrays[v] for v in self.linear.weights}
        body = plain(self.linear, self.length, scans=self.scans)
        return associative.lower(body, constants, start, arrays)[1]

    def _before(self, init, h) -> dict:
        pairs = zip(self.graph.carry, init, h, strict=True)
        return {v: before(b, a, Rows(self.length)) for v, a, b in pairs}


def linearized(graph: Graph) -> tuple[Graph, Values, tuple[Var, ...]]:
    """One step of the changes, its constants, and the variables of the residuals."""
    changes, read = (variables_like(map(struct, graph.carry)) for _ in range(2))

    def run(arrays):
        def step(*carry):
            of_step = dict(zip(graph.carry, carry, strict=True))
            return Env(graph.eqns, {**arrays, **of_step}).read_all(graph.carry_out)

        at, moving = ([arrays[v] for v in group] for group in (graph.carry, changes))
        _, after = jax.jvp(step, at, moving)
        added = [lax.add(a, arrays[v]) for a, v in zip(after, read, strict=True)]
        return [*added, *added]

    xs = (*graph.carry, *graph.xs, *read)
    linear, consts = graph_of(run, graph.weights, changes, xs)
    for group in affine.groups(linear):
        if not group.parallel:
            raise ValueError(
                "solve: the derivative of a step by its carry must consist of blocks "
                f"of at most 8 numbers: {group.why}; use scanrnn.scan{_parts(graph)}"
            )
    return linear, consts, tuple(read)


def _parts(graph):
    """The way out of a step of complex numbers that has no complex derivative."""
    types = (v.aval.dtype for v in graph.carry)
    if not any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in types):
        return ""
    return ", or carry real and imaginary parts as arrays of their own"


def not_for_all_steps(graph: Graph) -> str | None:
    """Why a step cannot be computed for all steps at once, or None."""
    if any(eqn.effects for eqn in graph.eqns):
        return "the step has side effects"
    timed = (eqn for eqn in graph.eqns if graph.depends[eqn])
    return DRAWS if ops.draws_apart(timed) else None
