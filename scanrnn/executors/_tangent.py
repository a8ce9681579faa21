"""The loop in which tangents flow, and its transpose.

The transpose is what a gradient runs: a loop from the last step to the first that
stacks the cotangents of what entered. It writes them over what the forward loop
kept for it, which nothing reads any more once a step has been passed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, Var

from scanrnn.executors._contributions import contributions
from scanrnn.executors._inplace import Late, pair_up, piece
from scanrnn.executors._linear import Linear
from scanrnn.executors._recurrence import Loop, named, values, varying
from scanrnn.planner.gemm import turn
from scanrnn.planner.graph import struct
from scanrnn.planner.packing import Pack


def tangent_loop(loop, packs, carry, constants, streams, d_weights, d_carry, d_xs):
    """Tangents of the final carry and the ys; None where structurally zero."""
    graph, rules = loop.graph, loop.derivative
    apart = _unpacked(packs, streams)
    entering = contributions(loop, constants, apart, d_weights, d_xs)
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
    read = rules.read_inside | {pack.whole for pack in packs}
    streams = {v: s for v, s in streams.items() if v in read}
    known, tangents = (constants, turned, streams), (init, d_weights, entering, d_xs)
    program = Tangents(loop, tuple(packs), _names(known), _names(tangents), ys)
    args, run = (_flat(known), _flat(tangents)), program.forward
    if loop.in_place and not varying([*args[0], *args[1]]):
        run = Linear(program.forward, program.transposed)
    outs = run(*args)
    d_final, d_ys = named(moving, outs[: len(moving)]), named(ys, outs[len(moving) :])
    return [d_final.get(v) for v in graph.carry], [d_ys.get(v) for v in graph.ys]


@dataclasses.dataclass(frozen=True, eq=False)
class Tangents:
    """Tangents of the final carry and the ys, as a function of flat lists.

    Attributes:
      loop: the loop.
      packs: gates that lie in one of the streams.
      known: names of constants, of turned matrices, of streams.
      moving: names of tangents: of carries at the start, of weights, of what
        enters from outside at each step, of time inputs.
      ys: the stacked outputs that have a tangent.
    """

    loop: Loop
    packs: tuple[Pack, ...]
    known: tuple[tuple[Var, ...], ...]
    moving: tuple[tuple[Var, ...], ...]
    ys: tuple[Var, ...]

    def forward(self, known: list, moving: list) -> list:
        """The tangents, by a loop that JAX may differentiate again."""
        constants, turned, streams = _grouped(self.known, known)
        init, d_weights, entering, d_xs = _grouped(self.moving, moving)
        streams = _unpacked(self.packs, streams)
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
        constants, turned, streams = _grouped(self.known, known)
        carries, weights, *entering = self.moving
        ct_ys = named(self.ys, cts[len(carries) :])
        ct_ys = {v: ct for v, ct in ct_ys.items() if ct is not None}
        stacked = [v for group in entering for v in group]
        # Over what was kept, else over cotangents that came in.
        over = self._overwritten()
        again = pair_up((v for v in stacked if v not in over), ct_ys)
        apart = [v for v in stacked if v not in over and v not in again]
        late = Late(self.loop.length, not self.loop.reverse)
        arrays = [streams.pop(v) for v in over.values()]
        arrays += [ct_ys.pop(v) for v in again.values()]
        wholes = [pack.whole for pack in self.packs if pack.whole in streams]
        pieced = {v: streams.pop(v) for v in wholes}

        def body(state, x):
            ct_carry, sums, arrays, rows = state
            t, streams_t, ct_ys_t = x
            arrays = late.write(arrays, rows, t)
            kept, came = arrays[: len(over)], arrays[len(over) :]
            primals = constants | named(streams, streams_t)
            primals |= self._rows(pieced | named(over.values(), kept), t)
            ct_ys_t = named(ct_ys, ct_ys_t)
            ct_ys_t |= self._rows(named(again.values(), came), t)
            ct_carry, more, *made = self._pull(primals, turned, ct_carry, ct_ys_t)
            sums = [jnp.add(a, b) for a, b in zip(sums, more, strict=True)]
            made = named(stacked, [ct for group in made for ct in group])
            rows = [made[v] for v in (*over, *again)]
            return (ct_carry, sums, arrays, rows), [made[v] for v in apart]

        ct_final = [
            _zeros(v) if ct is None else ct
            for v, ct in zip(carries, cts[: len(carries)], strict=True)
        ]
        state = ct_final, [_zeros(v) for v in weights], arrays, late.start(arrays)
        steps = lax.iota("int32", self.loop.length)
        xs = steps, values(streams), values(ct_ys)
        (ct_carry, sums, arrays, rows), ys = self.loop.scan_back(body, state, xs)
        found = named((*over, *again), late.finish(arrays, rows)) | named(apart, ys)
        return [*ct_carry, *sums, *(found[v] for v in stacked)]

    def _step(self, ys, primals, turned, d_carry, d_weights, entering, d_xs):
        """Tangents of the carry after one step and of some ys."""
        graph, rules = self.loop.graph, self.loop.derivative
        carries, weights, cuts, xs = self.moving
        after = named(graph.carry, graph.carry_out)
        tangents = named(carries, d_carry) | named(weights, d_weights) | named(xs, d_xs)
        # Rules may evaluate what no tangent depends on, as `jax.jvp` does.
        asked = (*graph.carry, *graph.xs, *rules.saved)
        primals = {v: _zeros(v) for v in asked if v not in primals} | primals
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
        """For what is stacked, the streams that it is written over."""
        rules, graph, loop = self.loop.derivative, self.loop.graph, self.loop
        needed = {*graph.ys, *rules.read_outside, *(set(graph.xs) - loop.spare)}
        for pack in self.packs:
            if needed & {*pack.members}:
                needed.add(pack.whole)
        _, _, streams = self.known
        _, _, cuts, xs = self.moving
        return pair_up((*cuts, *xs), [v for v in streams if v not in needed])

    def _rows(self, arrays, t) -> dict[Var, Any]:
        """Values of one step, from arrays of all steps."""
        packs = {pack.whole: pack for pack in self.packs}
        found = {}
        for v in arrays:
            if v not in packs:
                found[v] = piece(arrays, t, v)
                continue
            for member, start, size in packs[v].spans():
                found[member] = piece(arrays, t, v, packs[v].axis, start, size)
        return found


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


def _unpacked(packs, streams) -> dict[Var, Any]:
    """Streams of which each is one variable."""
    streams = dict(streams)
    for pack in packs:
        if pack.whole in streams:
            parts = lax.split(streams.pop(pack.whole), pack.sizes, pack.axis + 1)
            streams |= named(pack.members, parts)
    return streams


def _names(groups) -> tuple[tuple[Var, ...], ...]:
    return tuple(tuple(group) for group in groups)


def _flat(groups) -> list:
    return [value for group in groups for value in group.values()]


def _grouped(names, flat) -> list[dict[Var, Any]]:
    found = iter(flat)
    return [{v: next(found) for v in group} for group in names]
