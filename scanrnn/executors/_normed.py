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
from jax.custom_derivatives import SymbolicZero

from scanrnn.executors._inplace import Late, pair_up
from scanrnn.executors._linear import Linear, of_some
from scanrnn.executors._recurrence import named
from scanrnn.executors._together import together
from scanrnn.planner.graph import Env, Graph
from scanrnn.planner.norms import Norms


@dataclasses.dataclass(frozen=True, eq=False)
class Normed:
    """What norms give of all steps, as a function of what they read.

    Attributes:
      graph: the step.
      length: the number of steps.
      norms: what is read, and what is made.
    """

    graph: Graph
    length: int
    norms: Norms

    def __call__(self, streams: list, constants: list) -> list:
        """The outs of all steps, given `norms.streams` and `norms.constants`."""
        run = jax.custom_jvp(self._primal)
        run.defjvp(self._rule, symbolic_zeros=True)
        return run(streams, constants)

    def _primal(self, streams, constants):
        return together(self._all(streams, constants), [*streams, *constants])

    def _all(self, streams, constants):
        def step(streams, constants):
            known = named(self.norms.streams, streams) | named(
                self.norms.constants, constants
            )
            return Env(self.graph.eqns, known.items()).read_all(self.norms.outs)

        return jax.vmap(step, (0, None))(streams, constants)

    def _rule(self, primals, tangents):
        fixed, tangents = ([*streams, *rest] for streams, rest in (primals, tangents))
        at = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
        forward = functools.partial(self._forward, at)
        run = Linear(forward, functools.partial(self._transposed, at))
        return self(*primals), run(fixed, [tangents[i] for i in at])

    def _of(self, at, fixed) -> Callable[..., list]:
        """The outs as a function of the arguments at some places alone."""
        count = len(self.norms.streams)
        return of_some(lambda *args: self._all(args[:count], args[count:]), fixed, at)

    def _forward(self, at, fixed, moving):
        return jax.jvp(self._of(at, fixed), [fixed[i] for i in at], moving)[1]

    def _transposed(self, at, fixed, cts):
        """Cotangents of the arguments at some places, one piece after the other."""
        count, pieces = len(self.norms.streams), self.length // self.norms.size
        cut = functools.partial(_folded, (pieces, self.norms.size))
        streams, constants = list(map(cut, fixed[:count])), fixed[count:]
        given = named(self.norms.outs, cts)
        given = {v: cut(ct) for v, ct in given.items() if ct is not None}
        stacked = [self.norms.streams[i] for i in at if i < count]
        over, late = pair_up(stacked, given), Late(pieces, reverse=False)
        arrays = [given.pop(v) for v in over.values()]

        def body(state, x):
            (arrays, rows, sums), (t, streams_t, given_t) = state, x
            arrays = late.write(arrays, rows, t)
            known = named(over.values(), (_row(a, t) for a in arrays))
            known |= named(given, given_t)
            found = self._pull(at, [*streams_t, *constants], known)
            made, more = named(stacked, found[: len(stacked)]), found[len(stacked) :]
            sums = [jnp.add(a, b) for a, b in zip(sums, more, strict=True)]
            apart = [made[v] for v in stacked if v not in over]
            return (arrays, [made[v] for v in over], sums), apart

        sums = [jnp.zeros_like(fixed[i]) for i in at if i >= count]
        state = arrays, late.start(arrays), sums
        xs = lax.iota("int32", pieces), streams, list(given.values())
        (arrays, rows, sums), apart = lax.scan(body, state, xs)
        made = named(over, late.finish(arrays, rows))
        made |= named((v for v in stacked if v not in over), apart)
        return [*(_folded((self.length,), made[v], 2) for v in stacked), *sums]

    def _pull(self, at, fixed, cts) -> list:
        """Cotangents of some arguments, given those of some outs, of one piece."""

        def asked(*values):
            outs = named(self.norms.outs, self._of(at, fixed)(*values))
            return [outs[v] for v in cts]

        _, pull = jax.vjp(asked, *(fixed[i] for i in at))
        return list(pull(list(cts.values())))


def _folded(lead, array, axes=1):
    """The array with other leading axes in place of its first ones."""
    return lax.reshape(array, (*lead, *array.shape[axes:]))


def _row(array, t):
    return lax.dynamic_index_in_dim(array, t, keepdims=False)
