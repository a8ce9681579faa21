"""The loop in which tangents flow, and its transpose.

The transpose is what a gradient runs: a loop from the last step to the first that
stacks the cotangents of what entered. It writes them over what the forward loop
kept for it, which nothing reads any more once a step has been passed.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, Var

from scanrnn.executors._contributions import contributions
from scanrnn.executors._inplace import Late, pair_up
from scanrnn.executors._kept import Kept
from scanrnn.executors._linear import Linear
from scanrnn.executors._recurrence import (
    Loop,
    flat,
    grouped,
    named,
    names_of,
    values,
    varying,
    zeros_of,
)
from scanrnn.planner.gemm import turn
from scanrnn.planner.graph import struct


def tangent_loop(loop, kept, carry, known, d_weights, d_carry, d_xs):
    """Tangents of the final carry and the ys; None where structurally zero.

    `known` is constants, arrays of all steps, and edges, by name.
    """
    graph, rules = loop.graph, loop.derivative
    lazy = loop.in_place and not varying(flat((*known, d_weights, d_carry, d_xs)))
    constants, arrays, edges = known
    if not lazy:
        arrays, edges, kept = kept.whole(arrays, edges), {}, Kept(loop.length)
    known = constants, arrays, edges
    entering = contributions(loop, kept, lazy, known, d_weights, d_xs)
    d_weights = {v: t for v, t in d_weights.items() if v in rules.inner_weights}
    d_xs = {v: t for v, t in d_xs.items() if v in rules.inner_xs}
    nonzero = _reach(loop, {*d_carry}, {*d_weights, *d_xs}, {*entering})
    moving = [v for v in graph.carry if v in nonzero]
    ys = tuple(v for v in graph.ys if v in nonzero)
    if not moving and not ys:
        return [None] * len(graph.carry), [None] * len(graph.ys)
    zeros = {v: jnp.zeros_like(c) for v, c in named(graph.carry, carry).items()}
    init = {v: d_carry.get(v, zeros[v]) for v in moving}
    turned = {v: turn(constants[v]) for v in rules.matrices if v in constants}
    arrays, edges = kept.of(rules.read_inside, arrays, edges)
    known = constants, turned, arrays, edges
    tangents = init, d_weights, entering, d_xs
    program = Tangents(loop, kept, names_of(known), names_of(tangents), ys)
    run = Linear(program.forward, program.transposed) if lazy else program.forward
    outs = run(flat(known), flat(tangents))
    d_final, d_ys = named(moving, outs[: len(moving)]), named(ys, outs[len(moving) :])
    return [d_final.get(v) for v in graph.carry], [d_ys.get(v) for v in graph.ys]


@dataclasses.dataclass(frozen=True, eq=False)
class Tangents:
    """Tangents of the final carry and the ys, as a function of flat lists.

    Attributes:
      loop: the loop.
      kept: how the arrays of all steps are read.
      known: names of constants, of turned matrices, of arrays, of edges.
      moving: names of tangents: of carries at the start, of weights, of what
        enters from outside at each step, of time inputs.
      ys: the stacked outputs that have a tangent.
    """

    loop: Loop
    kept: Kept
    known: tuple[tuple[Var, ...], ...]
    moving: tuple[tuple[Var, ...], ...]
    ys: tuple[Var, ...]

    def forward(self, known: list, moving: list) -> list:
        """The tangents, by a loop that JAX may differentiate again."""
        constants, turned, arrays, edges = grouped(self.known, known)
        init, d_weights, entering, d_xs = grouped(self.moving, moving)
        streams = self.kept.whole(arrays, edges)
        groups = constants, turned, d_weights, streams, entering, d_xs

        def step(d_carry, *parts):
            parts = [named(g, p) for g, p in zip(groups, parts, strict=True)]
            constants, turned, d_weights, streams, entering, d_xs = parts
            tangents = d_carry, values(d_weights), values(entering), values(d_xs)
            return self._step(self.ys, constants | streams, turned, *tangents)

        step = self.loop.rematerialised(step)
        fixed = [values(g) for g in groups[:3]]
        d_final, d_ys = self.loop.scan(
            lambda c, x: step(c, *fixed, *x),
            values(init),
            [values(g) for g in groups[3:]],
        )
        return [*d_final, *d_ys]

    def transposed(self, known: list, cts: list) -> list:
        """Cotangents of all that moves, given those of the outputs or None."""
        constants, turned, arrays, edges = grouped(self.known, known)
        carries, weights, *entering = self.moving
        ct_ys = named(self.ys, cts[len(carries) :])
        ct_ys = {v: ct for v, ct in ct_ys.items() if ct is not None}
        stacked = [v for group in entering for v in group]
        # Over what was kept, else over cotangents that came in.
        over = self._overwritten()
        again = pair_up((v for v in stacked if v not in over), ct_ys)
        apart = [v for v in stacked if v not in over and v not in again]
        late = Late(self.loop.length, not self.loop.reverse)
        state = [arrays.pop(v) for v in over.values()]
        state += [ct_ys.pop(v) for v in again.values()]
        # Of these, more than a step's row is read, or a part of it.
        wholes = {*self.kept.arrays(edges), *(p.whole for p in self.kept.packs)}
        pieced = {v: arrays.pop(v) for v in [*arrays] if v in wholes}

        def body(state, x):
            ct_carry, sums, written, rows = state
            t, rows_t, ct_ys_t = x
            written = late.write(written, rows, t)
            kept, came = written[: len(over)], written[len(over) :]
            primals = constants | named(arrays, rows_t)
            kept = pieced | named(over.values(), kept)
            primals |= self.kept.rows(kept, edges, t)
            ct_ys_t = named(ct_ys, ct_ys_t)
            ct_ys_t |= self.kept.rows(named(again.values(), came), {}, t)
            ct_carry, more, *made = self._pull(primals, turned, ct_carry, ct_ys_t)
            sums = [jnp.add(a, b) for a, b in zip(sums, more, strict=True)]
            made = named(stacked, [ct for group in made for ct in group])
            rows = [made[v] for v in (*over, *again)]
            return (ct_carry, sums, written, rows), [made[v] for v in apart]

        ct_final = [
            _zeros(v) if ct is None else ct
            for v, ct in zip(carries, cts[: len(carries)], strict=True)
        ]
        state = ct_final, [_zeros(v) for v in weights], state, late.start(state)
        steps = lax.iota("int32", self.loop.length)
        xs = steps, values(arrays), values(ct_ys)
        (ct_carry, sums, written, rows), ys = self.loop.scan_back(body, state, xs)
        found = named((*over, *again), late.finish(written, rows)) | named(apart, ys)
        return [*ct_carry, *sums, *(found[v] for v in stacked)]

    def _step(self, ys, primals, turned, d_carry, d_weights, entering, d_xs):
        """Tangents of the carry after one step and of some ys."""
        graph, rules = self.loop.graph, self.loop.derivative
        carries, weights, cuts, xs = self.moving
        after = named(graph.carry, graph.carry_out)
        tangents = named(carries, d_carry) | named(weights, d_weights) | named(xs, d_xs)
        primals = zeros_of(rules, primals) | primals
        found = rules.inside(primals, tangents, named(cuts, entering), turned)
        d_next = [
            _or_zeros(found, after[v], t) for v, t in zip(carries, d_carry, strict=True)
        ]
        return d_next, [found[v] for v in ys]

    def _pull(self, primals, turned, ct_carry, ct_ys):
        """The transpose of one step."""
        structs = [[struct(v) for v in group] for group in self.moving]
        # Not zeros for the others: what nobody asks for need not be transposable.
        ys = tuple(v for v in self.ys if v in ct_ys)
        step = functools.partial(self._step, ys, primals, turned)
        cts = ct_carry, [ct_ys[v] for v in ys]
        return jax.linear_transpose(step, *structs)(cts)

    def _overwritten(self) -> dict[Var, Var]:
        """For what is stacked, the arrays that it is written over.

        A shift may be read from one of them: of a row that is not yet written.
        """
        rules, graph, loop = self.loop.derivative, self.loop.graph, self.loop
        needed = {*graph.ys, *rules.read_outside, *(set(graph.xs) - loop.spare)}
        needed |= self.kept.arrays(needed)
        _, _, arrays, _ = self.known
        _, _, cuts, xs = self.moving
        return pair_up((*cuts, *xs), [v for v in arrays if v not in needed])


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


def _or_zeros(found, atom, like):
    t = None if isinstance(atom, Literal) else found.get(atom)
    return jnp.zeros_like(like) if t is None else t


def _zeros(v):
    return jnp.zeros(v.aval.shape, v.aval.dtype)
