"""The trips of a loop of XLA: the steps of each, and the rows that it writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import add, mul
from typing import Any

from jax import lax
from jax.extend.core import Var

from scanrnn.executors.run.names import named
from scanrnn.executors.run.ordering import copied
from scanrnn.executors.run.pin import Tile, pin
from scanrnn.planner.bodies import Body
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Values
from scanrnn.planner.ir.rows import index, put
from scanrnn.planner.motion.around import output_joins, stacked_parts


@dataclasses.dataclass(frozen=True, eq=False)
class Trips:
    """The trips of a body.

    Attributes:
      body: the loop.
      constants: the values of its weights.
      inside: arrays of all steps whose rows are read by index.
      scanned: the time inputs whose rows `lax.scan` gives to each trip.
      theirs: the ys, by index, that `lax.scan` stacks.
      ours: the ys, by index, that a trip writes into memory.
    """

    body: Body
    constants: Values
    inside: Values
    scanned: Sequence[Var]
    theirs: Sequence[int]
    ours: Sequence[int]

    def trip(self, state, x):
        """One trip, for `lax.scan`."""
        (carry, written, late, count, memory), (at, xs) = state, x
        rows, block = self.body.rows, self.body.rows.trip_steps
        carry = [_pinned(a, self.body.row_tile) for a in carry]
        at = count if at is None else at
        first = index(mul, at, block) if block > 1 else at
        written = rows.write(written, late, at)

        def given(j):
            return (index(add, first, j), [x[j] for x in xs]) if block > 1 else (at, xs)

        carry, made = self._steps(carry, written, block, given)
        late = [_stacked(made[i]) for i in rows.over]
        ys = [_stacked(made[i]) if block > 1 else made[i][0] for i in self.theirs]
        pairs = zip(self.ours, memory, strict=True)
        memory = [put(a, _stacked(made[i]), first) for i, a in pairs]
        return (carry, written, late, rows.after(count), memory), ys

    def rest(self, carry: list, written: list, memory: list) -> tuple[list, ...]:
        """The steps beside the loop, which are the last ones of the sequence.

        All rows are read and written by index: to cut the last steps off the arrays
        would copy them. XLA's loops for an H100 then take 843 kernels for training an
        LSTM of 127 steps (32, 512), and without such steps 2,437.
        """
        rows, first = self.body.rows, self.body.rows.first_beside
        carry, made = self._steps(carry, written, rows.rest, lambda j: (first + j, []))
        pairs = zip((*written, *memory), (*rows.over, *self.ours), strict=True)
        arrays = [put(a, _stacked(made[i]), first) for a, i in pairs]
        return carry, arrays[: len(written)], arrays[len(written) :]

    def _steps(
        self, carry: list, written: Sequence, count: int, given: Callable[[int], Any]
    ) -> tuple[list, list[list]]:
        """Run some steps. Returns the next carry, and for each of the ys its rows.

        `given` says for each step its index in time, and the rows that are scanned.
        """
        graph, rows = self.body.graph, self.body.rows
        here = {**self.inside, **named(rows.over.values(), written)}
        made: list[list] = [[] for _ in graph.ys]
        order = slice(None, None, -1 if rows.reverse else 1)
        for j in range(count)[order]:
            t, row = given(j)
            carry, ys = _step(
                self.body, self.constants, carry, here, t, named(self.scanned, row)
            )
            for values, y in zip(made, ys, strict=True):
                values.append(y)
        return carry, [ys[order] for ys in made]


def _pinned(carry, tile: Tile | None):
    """A leaf of the carry, laid out as its rows are.

    One that ends in an axis of size 1 stays as XLA lays it out. Compiled for a TPU v5e,
    training a leaky sum (128, 8, 1) took 1.8 million cycles with it pinned, and 0.97
    without.
    """
    if tile is None or carry.shape[-1:] == (1,):
        return carry
    return pin(carry, tile, 0)


def _step(body, constants, carry, here, t, scanned):
    """One step: the next carry, and the ys."""
    graph, rows = body.graph, body.rows
    values = {**constants, **scanned}
    values = {v: lax.reshape(a, ops.aval(v).shape) for v, a in values.items()}
    values |= dict(zip(graph.carry, carry, strict=True))
    values |= {v: rows.row(here, t, v) for v in graph.xs if v not in scanned}
    values |= {v: copied(values[v]) for v in body.copied}
    env = Env(graph.eqns, values)
    carry = env.read_all(graph.carry_out)
    ys = _with_own(graph, env, body.own) if body.own else env.read_all(graph.ys)
    return lax.optimization_barrier(carry) if body.separate else carry, ys


def _with_own(graph, env, own):
    """The ys of a step; a barrier stops XLA from recomputing the rows in `own`."""
    joins = output_joins(graph)
    rows = stacked_parts(graph, joins)
    # A reverse step also reads what is joined, without the barrier.
    made = named(rows, env.read_all(rows))
    made |= named(own, lax.optimization_barrier([made[v] for v in own]))
    return Env(joins, made).read_all(graph.ys)


def _stacked(rows):
    rows = [lax.expand_dims(row, [0]) for row in rows]
    return rows[0] if len(rows) == 1 else lax.concatenate(rows, 0)
