"""The loop of a plan, with its own derivative rule.

It is a `custom_jvp` around `lax.scan`. The tangent is a second scan in which
only carry tangents flow; what weights contribute enters it as stacked inputs
computed outside for all steps at once. Reverse mode is JAX's transpose of that
program: a reverse loop of state cotangents, then one contraction per weight.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Literal, Var

from scanrnn.executors._batch import over_time
from scanrnn.planner.gradient import Derivative, derive
from scanrnn.planner.graph import Graph
from scanrnn.planner.layout import PLAIN, LaidEnv, Layout, lay_out


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop graph with its run-time choices; the graph's `ys` are stacked."""

    graph: Graph
    length: Any
    reverse: bool
    unroll: int | bool
    residuals: str
    defer: bool
    laid_out: bool

    @functools.cached_property
    def derivative(self) -> Derivative:
        """The derivative rules of this loop."""
        return derive(self.graph, self.residuals)

    @functools.cached_property
    def layout(self) -> Layout:
        """What runs in pieces, one for each gate.

        Not where JAX differentiates the loop: what a step reads directly from the
        whole sequence would have a cotangent as long, to add to at every step.
        """
        return lay_out(self.graph) if self.laid_out else PLAIN

    def scan(self, body, init, xs):
        """`lax.scan` with this loop's length, direction and unrolling."""
        # A symbolic length cannot be given, only found in the shapes of xs.
        length = None if jax.tree.leaves(xs) else self.length
        return lax.scan(
            body, init, xs, length, reverse=self.reverse, unroll=self.unroll
        )

    def rematerialised(self, f):
        """Keep only the inputs of `f` for its transpose, unless all is saved."""
        if self.residuals == "everything":
            return f
        keep = jax.checkpoint_policies.nothing_saveable
        return jax.checkpoint(f, prevent_cse=False, policy=keep)


def run_loop(loop: Loop, weights: list, carry: list, xs: list):
    """Run the loop. Returns the final carry and the stacked ys."""
    if not loop.defer:
        return _forward(loop, weights, carry, xs)
    run = jax.custom_jvp(functools.partial(_forward, loop))
    run.defjvp(functools.partial(_rule, loop), symbolic_zeros=True)
    return run(weights, carry, xs)


def _forward(loop, weights, carry, xs):
    graph, layout = loop.graph, loop.layout
    constants, streams = _named(graph.weights, weights), _named(graph.xs, xs)
    pieced = {v: streams.pop(v) for v in layout.streams}

    def body(carry, x):
        t, x = x
        known = constants | _named(graph.carry, carry) | _named(streams, x)
        piece = functools.partial(_piece, pieced, t)
        outs = LaidEnv(graph, layout, known, piece).read_all(graph.outs)
        n = len(graph.carry_out)
        return outs[:n], outs[n:]

    steps = lax.iota("int32", loop.length) if pieced else None
    return loop.scan(body, list(carry), (steps, _values(streams)))


def _piece(streams, t, v, axis, start, size):
    """One step of a stream: all of it, or a piece along `axis` of the step.

    It is one slice of the whole sequence, and not a slice of a slice.
    """
    if axis is None:
        return lax.dynamic_index_in_dim(streams[v], t, keepdims=False)
    stacked = streams[v]
    starts, sizes = [np.int32(0)] * stacked.ndim, list(stacked.shape)
    starts[0], sizes[0] = t, 1
    starts[axis + 1], sizes[axis + 1] = np.int32(start), size
    return lax.squeeze(lax.dynamic_slice(stacked, starts, sizes), [0])


def _rule(loop, primals, tangents):
    """Primal loop with residuals, contributions from outside, tangent loop."""
    graph = loop.graph
    weights, carry, xs = primals
    d_weights, d_carry, d_xs = (
        _moving(names, ts)
        for names, ts in zip(
            (graph.weights, graph.carry, graph.xs), tangents, strict=True
        )
    )
    residuals = Residuals(loop)
    final, stacked = run_loop(residuals.loop, weights, carry, xs)

    def program(weights, carry, xs, final, stacked, *moving):
        constants = _named(graph.weights, weights)
        streams = residuals.streams(carry, final, stacked) | _named(graph.xs, xs)
        names = (d_weights, d_carry, d_xs)
        moving = [_named(n, ts) for n, ts in zip(names, moving, strict=True)]
        return _tangent_loop(loop, carry, constants, streams, *moving)

    # Rematerialised as a whole, so that what is kept is exactly its inputs.
    moving = map(_values, (d_weights, d_carry, d_xs))
    d_out = loop.rematerialised(program)(weights, carry, xs, final, stacked, *moving)
    out = final, stacked[: len(graph.ys)]
    return out, tuple(
        [_symbolic(t, y) for t, y in zip(ts, ys, strict=True)]
        for ts, ys in zip(d_out, out, strict=True)
    )


class Residuals:
    """What the forward loop stacks for its tangent, each value once.

    The carry before a step is the carry after the previous one: when one of the
    two is stacked anyway, the other is that array shifted by one step.
    """

    def __init__(self, loop: Loop):
        """Choose what to stack beyond the ys of `loop`."""
        self._reverse = loop.reverse
        graph, rules = loop.graph, loop.derivative
        pairs = list(zip(graph.carry, graph.carry_out, strict=True))
        wanted = [*rules.saved, *(graph.carry[i] for i in rules.carry_saved)]
        # Those after each step from those before it, where the ys have the latter.
        self._after = {
            after: (i, before)
            for i, (before, after) in enumerate(pairs)
            if after in rules.saved and before in graph.ys and after not in graph.ys
        }
        kept = [v for v in wanted if v not in self._after]
        self._before = {
            before: (i, after)
            for i, (before, after) in enumerate(pairs)
            if before in kept and before not in graph.ys
            if after in (*graph.ys, *kept)
        }
        self._direct = [v for v in dict.fromkeys(kept) if v not in self._before]
        ys = (*graph.ys, *(v for v in self._direct if v not in graph.ys))
        self._at = {v: i for i, v in reversed([*enumerate(ys)])}
        self.loop = dataclasses.replace(loop, graph=dataclasses.replace(graph, ys=ys))

    def streams(self, carry, final, stacked) -> dict[Var, Any]:
        """Stacked values by variable; carries are those before each step."""
        found = {v: stacked[self._at[v]] for v in self._direct}
        for v, (i, after) in self._before.items():
            found[v] = _shift(carry[i], stacked[self._at[after]], not self._reverse)
        for v, (i, before) in self._after.items():
            found[v] = _shift(final[i], stacked[self._at[before]], self._reverse)
        return found


def _shift(edge, values, later):
    """Values one step later with `edge` first, or one step earlier with it last."""
    edge = lax.expand_dims(edge, (0,))
    parts = [edge, values[:-1]] if later else [values[1:], edge]
    return lax.concatenate(parts, 0)


def _contributions(loop, constants, streams, d_weights, d_xs) -> dict[Var, Any]:
    """`E` for all steps at once, by the cut at which it enters."""
    rules, at = loop.derivative, []
    if not rules.cuts or not (d_weights or d_xs):
        return {}

    def step(streams_t, d_xs_t, constants_, d_weights_):
        primals = _named(constants, constants_) | _named(streams, streams_t)
        tangents = _named(d_weights, d_weights_) | _named(d_xs, d_xs_t)
        found = rules.outside(primals, tangents)
        at[:] = found
        return list(found.values())

    batched = over_time(step, (0, 0, None, None), loop.length)
    found = loop.rematerialised(batched)(
        *map(_values, (streams, d_xs, constants, d_weights))
    )
    return _named(at, found)


def _tangent_loop(loop, carry, constants, streams, d_weights, d_carry, d_xs):
    """Tangents of the final carry and the ys; None where structurally zero."""
    graph, rules = loop.graph, loop.derivative
    entering = _contributions(loop, constants, streams, d_weights, d_xs)
    d_weights = {v: t for v, t in d_weights.items() if v in rules.inner_weights}
    d_xs = {v: t for v, t in d_xs.items() if v in rules.inner_xs}
    nonzero = _reach(loop, {*d_carry}, {*d_weights, *d_xs}, {*entering})
    after = dict(zip(graph.carry, graph.carry_out, strict=True))
    moving = [v for v in graph.carry if v in nonzero]
    ys_moving = [v for v in graph.ys if v in nonzero]
    if not moving and not ys_moving:
        return [None] * len(graph.carry), [None] * len(graph.ys)
    turned = {v: constants[v].T for v in rules.matrices if v in constants}
    groups = (constants, d_weights, turned, streams, entering, d_xs)

    def step(d_carry_t, *values):
        named = [_named(g, v) for g, v in zip(groups, values, strict=True)]
        constants_, d_weights_, turned_, streams_t, entering_t, d_xs_t = named
        tangents = _named(moving, d_carry_t) | d_weights_ | d_xs_t
        found = rules.inside(constants_ | streams_t, tangents, entering_t, turned_)
        d_next = [
            _or_zeros(found, after[v], t)
            for v, t in zip(moving, d_carry_t, strict=True)
        ]
        return d_next, [found[v] for v in ys_moving]

    step = loop.rematerialised(step)
    fixed = [_values(g) for g in groups[:3]]
    primal = _named(graph.carry, carry)
    init = [d_carry[v] if v in d_carry else jnp.zeros_like(primal[v]) for v in moving]
    d_final, d_ys = loop.scan(
        lambda c, x: step(c, *fixed, *x), init, [_values(g) for g in groups[3:]]
    )
    d_final, d_ys = _named(moving, d_final), _named(ys_moving, d_ys)
    return [d_final.get(v) for v in graph.carry], [d_ys.get(v) for v in graph.ys]


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


def _named(names, values) -> dict[Var, Any]:
    return dict(zip(names, values, strict=True))


def _values(named) -> list:
    return list(named.values())


def _moving(names, tangents) -> dict[Var, Any]:
    """The tangents that are not structurally zero."""
    return {
        v: t
        for v, t in zip(names, tangents, strict=True)
        if not isinstance(t, SymbolicZero)
    }


def _symbolic(tangent, primal):
    if tangent is not None:
        return tangent
    return SymbolicZero(jax.typeof(primal).to_tangent_aval())
