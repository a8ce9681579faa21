"""What weights and time inputs contribute to the tangents of a loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Var

from scanrnn.executors._batch import over_time
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
from scanrnn.planner.graph import struct
from scanrnn.planner.halves import in_wide_sums
from scanrnn.planner.loops import Loop
from scanrnn.planner.ordering import late
from scanrnn.planner.reverse import zeros_of


def contributions(
    loop: Loop,
    constants: Mapping[Var, Any],
    known: Mapping[Var, Any],
    d_weights: Mapping[Var, Any],
    d_xs: Mapping[Var, Any],
) -> dict[Var, Any]:
    """`E` for all steps at once, by the cut at which it enters.

    `known` is arrays of all steps, and edges, by name.
    """
    rules = loop.derivative
    if not rules.cuts or not (d_weights or d_xs):
        return {}
    cuts = _reached(rules, (*d_weights, *d_xs))
    known = loop.recording.rows.of(rules.rows(rules.read_outside), known)
    fixed, moving = (constants, known), (d_weights, d_xs)
    program = Contributions(loop, names_of(fixed), names_of(moving), cuts)
    if split([*flat(fixed), *flat(moving)]):
        run = remembering_inputs(program.forward, loop.residuals)
    else:
        run = linear(program.forward, lambda *_: program.transposed, loop.machine)
    return named(cuts, run(flat(fixed), flat(moving)))


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
      known: names of constants, and of arrays and edges.
      moving: names of tangents: of weights, of time inputs.
      cuts: where `E` enters.
    """

    loop: Loop
    known: tuple[tuple[Var, ...], ...]
    moving: tuple[tuple[Var, ...], ...]
    cuts: tuple[Var, ...]

    def forward(self, known: list, moving: list) -> list:
        """The contributions, for all steps at once."""
        constants, arrays = grouped(self.known, known)
        rows, rules = self.loop.recording.rows, self.loop.derivative
        streams = rows.whole(rules.rows(rules.read_outside), arrays)
        return self._all(constants, streams, self.cuts, moving)

    def transposed(self, known: list, cts: list) -> list:
        """Cotangents of weights and time inputs, given those of `E` or None."""
        constants, arrays = grouped(self.known, known)
        given = {v: ct for v, ct in named(self.cuts, cts).items() if ct is not None}
        ready = next(iter(given.values()))
        rows, rules = self.loop.recording.rows, self.loop.derivative
        names = rules.rows(rules.read_outside)
        streams = rows.whole([v for v in names if v not in rows.shifts], arrays)
        for v in names:
            if v in rows.shifts:
                # Made when `ready` is there: not to be kept through the loop.
                parts = rows.of([v], arrays)
                streams[v] = late(
                    ready,
                    lambda *parts_, v=v, names=tuple(parts): [
                        rows.all(named(names, parts_), v)
                    ],
                    *parts.values(),
                )[0]
        outside = functools.partial(self._all, constants, streams, tuple(given))
        weights, xs = (list(map(struct, group)) for group in self.moving)
        xs = [s.update(shape=(self.loop.length, *s.shape)) for s in xs]
        pull = in_wide_sums(jax.linear_transpose(outside, [*weights, *xs]))
        (found,) = pull(values(given))
        return found

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
