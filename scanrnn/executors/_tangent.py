"""The loop in which tangents flow, and its transpose.

The transpose is what a gradient runs: a loop from the last step to the first that
stacks the cotangents of what entered. It may write them over what the forward loop
kept for it, which nothing reads any more once a step has been passed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, Var

from scanrnn.executors._contributions import contributions
from scanrnn.executors._names import (
    flat,
    grouped,
    named,
    names_of,
    remembering_inputs,
    split,
    values,
)
from scanrnn.executors._ruled import linear
from scanrnn.planner import ops
from scanrnn.planner.gemm import turn
from scanrnn.planner.halves import rounded, zero_sum
from scanrnn.planner.loops import Loop
from scanrnn.planner.reverse import Moving, push_step, reverse_step
from scanrnn.planner.rows import pair_up


def tangent_loop(loop, lower, carry, constants, known, d_weights, d_carry, d_xs):
    """Tangents of the final carry and the ys; None where structurally zero.

    `known` is arrays of all steps, and edges, by name.
    """
    graph, rules = loop.graph, loop.derivative
    entering = contributions(loop, constants, known, d_weights, d_xs)
    d_weights = {v: t for v, t in d_weights.items() if v in rules.inner_weights}
    d_xs = {v: t for v, t in d_xs.items() if v in rules.inner_xs}
    nonzero = _reach(loop, {*d_carry}, {*d_weights, *d_xs}, {*entering})
    carries = [v for v in graph.carry if v in nonzero]
    ys = tuple(v for v in graph.ys if v in nonzero)
    if not carries and not ys:
        return [None] * len(graph.carry), [None] * len(graph.ys)
    zeros = {v: jnp.zeros_like(c) for v, c in named(graph.carry, carry).items()}
    init = {v: d_carry.get(v, zeros[v]) for v in carries}
    turned = {v: turn(constants[v]) for v in rules.matrices if v in constants}
    known = loop.recording.rows.of(rules.rows(rules.read_inside), known)
    fixed, tangents = (constants, turned, known), (init, d_weights, entering, d_xs)
    moving = Moving(*map(tuple, tangents), ys=ys)
    program = Tangents(loop, lower, names_of(fixed), moving)
    run = program.forward
    if not split([*flat(fixed), *flat(tangents)]):
        run = linear(run, program.transposed, loop.machine)
    outs = run(flat(fixed), flat(tangents))
    n = len(carries)
    d_final, d_ys = named(carries, outs[:n]), named(ys, outs[n:])
    return [d_final.get(v) for v in graph.carry], [d_ys.get(v) for v in graph.ys]


@dataclasses.dataclass(frozen=True, eq=False)
class Tangents:
    """Tangents of the final carry and the ys, as a function of flat lists.

    Attributes:
      loop: the loop.
      lower: how an executor runs a graph over all steps.
      known: names of constants, of turned matrices, of arrays and edges.
      moving: names of what has a tangent.
    """

    loop: Loop
    lower: Callable
    known: tuple[tuple[Var, ...], ...]
    moving: Moving

    def forward(self, known: list, tangents: list) -> list:
        """The tangents, by a loop that JAX may differentiate again."""
        constants, turned, arrays = grouped(self.known, known)
        init, d_weights, entering, d_xs = grouped(self.moving.ins, tangents)
        loop, rules = self.loop, self.loop.derivative
        streams = loop.recording.rows.whole(rules.rows(rules.read_inside), arrays)

        def step(d_carry, d_weights, fixed, x):
            primals, turned_ = named(constants, fixed[0]), named(turned, fixed[1])
            primals |= named(streams, x[0])
            tangents = d_carry, d_weights, x[1], x[2]
            outs = push_step(rules, self.moving, primals, turned_, *tangents)
            return outs[: len(d_carry)], outs[len(d_carry) :]

        step = remembering_inputs(step, loop.residuals)
        fixed, more = [values(constants), values(turned)], values(d_weights)
        xs = [values(streams), values(entering), values(d_xs)]
        # A symbolic length cannot be given, only found in the shapes of xs.
        length = None if jax.tree.leaves(xs) else loop.length
        d_final, d_ys = lax.scan(
            lambda c, x: step(c, more, fixed, x),
            values(init),
            xs,
            length,
            loop.reverse,
            loop.unroll,
        )
        return [*d_final, *d_ys]

    def transposed(self, machine, alone) -> Callable[[list, list], list]:
        """Cotangents of all that moves, given those of the outputs or None."""
        return functools.partial(self._transposed, machine, alone)

    def _transposed(self, machine, alone, known, cts):
        constants, turned, arrays = grouped(self.known, known)
        n, moving, loop = len(self.moving.carry), self.moving, self.loop
        given = named(moving.ys, cts[n:])
        given = {v: ct for v, ct in given.items() if ct is not None}
        reverse = reverse_step(loop.derivative, moving._replace(ys=tuple(given)))
        constants |= {name: turned[v] for v, name in reverse.turned.items()}
        constants |= reverse.consts
        arrays |= {reverse.cts[v]: ct for v, ct in given.items()}
        same_machine = machine == loop.machine
        over = self._overwritten(reverse) if alone and same_machine else {}
        rows = loop.recording.rows
        same = loop.plain_rows(machine)
        rows = dataclasses.replace(
            rows,
            reverse=not loop.reverse,
            over=over,
            block=same.block,
            fenced=same.fenced,
        )
        ct_carry = [
            ops.zeros(ops.aval(v)) if ct is None else ct
            for v, ct in zip(moving.carry, cts[:n], strict=True)
        ]
        sums = list(map(zero_sum, map(ops.aval, moving.weights)))
        choices = dict(machine=machine, unroll=loop.unroll)
        start = [*ct_carry, *sums]
        final, made = self.lower(
            reverse.graph, rows, constants, start, arrays, **choices
        )
        avals = map(ops.aval, moving.weights)
        sums = list(map(rounded, final[n:], avals))
        return [*final[:n], *sums, *made]

    def _overwritten(self, reverse) -> dict[int, Var]:
        """For what is stacked, the arrays that it is written over.

        Over what was kept, else over cotangents that came in. A shift may be read from
        one of them: of a row that is not yet written.
        """
        loop, graph = self.loop, self.loop.graph
        rules, rows = loop.derivative, loop.recording.rows
        if not loop.in_place:
            return {}
        needed = {*graph.ys, *rules.read_outside, *(set(graph.xs) - loop.spare)}
        needed |= {*rows.sources(v for v in needed)}
        edges, cts = rows.shifts, [*reverse.cts.values()]
        free = [v for v in self.known[2] if v not in needed and v not in edges]
        return pair_up(reverse.graph.ys, [*free, *cts])


def _reach(loop, moving, inner, entering) -> set[Var]:
    """Variables with a tangent in the loop: a fixpoint over the carry."""
    graph = loop.graph
    moving = set(moving)
    while True:
        nonzero = loop.derivative.nonzero(moving | inner, entering)
        more = {
            v
            for v, out in zip(graph.carry, graph.carry_out, strict=True)
            if not isinstance(out, Literal) and out in nonzero
        }
        if more <= moving:
            return nonzero
        moving |= more
