"""What weights and time inputs contribute to the tangents of a loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Var

from scanrnn.executors._batch import over_time
from scanrnn.executors._kept import Kept
from scanrnn.executors._linear import Linear
from scanrnn.executors._recurrence import (
    Loop,
    flat,
    grouped,
    named,
    names_of,
    values,
    zeros_of,
)
from scanrnn.planner.graph import struct
from scanrnn.planner.ordering import late


def contributions(
    loop: Loop, kept: Kept, lazy: bool, known, d_weights, d_xs
) -> dict[Var, Any]:
    """`E` for all steps at once, by the cut at which it enters.

    `known` is constants, arrays of all steps, and edges, by name. If `lazy`, what the
    transpose needs for it only is made late.
    """
    rules = loop.derivative
    if not rules.cuts or not (d_weights or d_xs):
        return {}
    cuts = _reached(rules, (*d_weights, *d_xs))
    constants, arrays, edges = known
    if lazy:
        arrays, edges = kept.of(rules.read_outside, arrays, edges)
    known, moving = (constants, arrays, edges), (d_weights, d_xs)
    program = Contributions(loop, kept, names_of(known), names_of(moving), cuts)
    run = loop.rematerialised(program.forward)
    if lazy:
        run = Linear(program.forward, program.transposed)
    return named(cuts, run(flat(known), flat(moving)))


def _reached(rules, moving) -> tuple[Var, ...]:
    """The cuts at which something enters, given what has a tangent."""
    known, found = (*rules.loop.inputs, *rules.saved), []

    def outside(primals, tangents):
        found.extend(rules.outside(named(known, primals), named(moving, tangents)))

    jax.eval_shape(outside, list(map(struct, known)), list(map(struct, moving)))
    return tuple(found)


@dataclasses.dataclass(frozen=True, eq=False)
class Contributions:
    """`E` as a function of flat lists, linear in the second.

    Attributes:
      loop: the loop.
      kept: how the arrays of all steps are read.
      known: names of constants, of arrays, of edges.
      moving: names of tangents: of weights, of time inputs.
      cuts: where `E` enters.
    """

    loop: Loop
    kept: Kept
    known: tuple[tuple[Var, ...], ...]
    moving: tuple[tuple[Var, ...], ...]
    cuts: tuple[Var, ...]

    def forward(self, known: list, moving: list) -> list:
        """The contributions, for all steps at once."""
        constants, arrays, edges = grouped(self.known, known)
        return self._all(constants, self.kept.whole(arrays, edges), self.cuts, moving)

    def transposed(self, known: list, cts: list) -> list:
        """Cotangents of weights and time inputs, given those of `E` or None."""
        constants, arrays, edges = grouped(self.known, known)
        given = {v: ct for v, ct in named(self.cuts, cts).items() if ct is not None}
        ready = next(iter(given.values()))
        streams = self.kept.whole(arrays, {})
        for v in (v for v in edges if v in self.loop.derivative.read_outside):
            streams[v] = self._shifted(v, arrays, edges, ready)
        outside = functools.partial(self._all, constants, streams, tuple(given))
        weights, xs = (list(map(struct, group)) for group in self.moving)
        xs = [s.update(shape=(self.loop.length, *s.shape)) for s in xs]
        (found,) = jax.linear_transpose(outside, [*weights, *xs])(values(given))
        return found

    def _shifted(self, v, arrays, edges, ready):
        """A shift, made when `ready` is there: not to be kept through the loop."""
        parts = self.kept.of([v], arrays, edges)

        def shifted(*known):
            return [self.kept.shifted(v, *grouped(parts, known))]

        return late(ready, shifted, *flat(parts))[0]

    def _all(self, constants, streams, cuts: Sequence[Var], moving: list) -> list:
        d_weights, d_xs = grouped(self.moving, moving)
        rules = self.loop.derivative

        def step(streams_t, d_xs_t, constants_, d_weights_):
            primals = named(constants, constants_) | named(streams, streams_t)
            tangents = named(d_weights, d_weights_) | named(d_xs, d_xs_t)
            found = rules.outside(zeros_of(rules, primals) | primals, tangents)
            return [found[v] for v in cuts]

        batched = over_time(step, (0, 0, None, None), self.loop.length)
        return batched(*map(values, (streams, d_xs, constants, d_weights)))
