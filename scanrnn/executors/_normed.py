"""Norms of whole sequences, and their transpose piece by piece.

Cotangents are written over those that came in.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from scanrnn.executors._names import named
from scanrnn.executors._ruled import Ruled, linear, of_some
from scanrnn.planner.graph import Env, Graph
from scanrnn.planner.halves import in_wide_sums, rounded, zero_sum
from scanrnn.planner.loops import Loop
from scanrnn.planner.rows import Rows, pair_up


@dataclasses.dataclass(frozen=True, eq=False)
class Normed:
    """What norms give of all steps, as a function of what they read.

    Attributes:
      graph: the norms of one step.
      loop: the loop that they come before, which says how many steps make a piece.
    """

    graph: Graph
    loop: Loop

    def __call__(self, streams: list, constants: list) -> list:
        """The outs of all steps, given the time inputs and the weights of the graph."""
        run = Ruled(self._all, lambda *_: self._all, self.loop.machine, self._rule)
        return run(*streams, *constants)

    def _all(self, *args):
        def step(streams, constants):
            names = (*self.graph.xs, *self.graph.weights)
            known = zip(names, (*streams, *constants), strict=True)
            return Env(self.graph.eqns, known).read_all(self.graph.ys)

        count = len(self.graph.xs)
        return jax.vmap(step, (0, None))(args[:count], args[count:])

    def _rule(self, primals, tangents):
        at = [i for i, t in enumerate(tangents) if t is not None]
        count = len(self.graph.xs)

        def transposed(machine, alone):
            # In pieces for one machine alone; JAX's own for all others.
            pieces = alone and machine == self.loop.machine
            over = pieces and self.loop.in_place
            make = self._transposed if pieces else self._at_once
            return functools.partial(make, at, over)

        forward = functools.partial(self._forward, at)
        run = linear(forward, transposed, self.loop.machine)
        return self(primals[:count], primals[count:]), run(
            primals, [tangents[i] for i in at]
        )

    def _of(self, at, fixed) -> Callable[..., list]:
        """The outs as a function of the arguments at some places alone."""
        return of_some(self._all, fixed, at)

    def _forward(self, at, fixed, moving):
        return jax.jvp(self._of(at, fixed), [fixed[i] for i in at], moving)[1]

    def _at_once(self, at, _, fixed, cts):
        given = {v: ct for v, ct in named(self.graph.ys, cts).items() if ct is not None}
        return self._pull(at, fixed, given)

    def _transposed(self, at, in_place, fixed, cts):
        """Cotangents of the arguments at some places, one piece after the other."""
        count, size = len(self.graph.xs), self.loop.piece
        pieces = self.loop.length // size
        cut = functools.partial(_folded, (pieces, size))
        streams, constants = list(map(cut, fixed[:count])), fixed[count:]
        given = named(self.graph.ys, cts)
        given = {v: cut(ct) for v, ct in given.items() if ct is not None}
        stacked = [self.graph.xs[i] for i in at if i < count]
        over = pair_up(stacked, given) if in_place else {}
        rows, arrays = Rows(pieces), [given.pop(v) for v in over.values()]

        def body(state, x):
            (arrays, late, sums), (t, streams_t, given_t) = state, x
            arrays = rows.write(arrays, late, t)
            here = [lax.dynamic_index_in_dim(a, t, keepdims=False) for a in arrays]
            known = named(over.values(), here)
            known |= named(given, given_t)
            found = self._pull(at, [*streams_t, *constants], known)
            made, more = found[: len(stacked)], found[len(stacked) :]
            sums = [jnp.add(a, rounded(b, a)) for a, b in zip(sums, more, strict=True)]
            apart = [ct for i, ct in enumerate(made) if i not in over]
            late = [jnp.expand_dims(made[i], 0) for i in over]
            return (arrays, late, sums), apart

        summed = [jax.typeof(fixed[i]) for i in at if i >= count]
        sums = list(map(zero_sum, summed))
        state = arrays, rows.start(arrays), sums
        xs = lax.iota("int32", pieces), streams, list(given.values())
        (arrays, late, sums), apart = lax.scan(body, state, xs)
        made, rest = (
            dict(zip(over, rows.finish(arrays, late), strict=True)),
            iter(apart),
        )
        every = [made[i] if i in over else next(rest) for i in range(len(stacked))]
        sums = map(rounded, sums, summed)
        return [*(_folded((self.loop.length,), ct, 2) for ct in every), *sums]

    def _pull(self, at, fixed, cts) -> list:
        """Cotangents of some arguments, given those of some outs, of one piece."""

        def asked(*values):
            outs = named(self.graph.ys, self._of(at, fixed)(*values))
            return [outs[v] for v in cts]

        _, pull = jax.vjp(asked, *(fixed[i] for i in at))
        return list(in_wide_sums(pull)(list(cts.values())))


def _folded(lead, array, axes=1):
    """The array with other leading axes in place of its first ones."""
    return lax.reshape(array, (*lead, *array.shape[axes:]))
