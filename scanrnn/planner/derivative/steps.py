"""The steps of a derivative as graphs, like that of the loop itself.

The *inside* step computes the tangents of the next carry and of the ys, from the
tangents of the carry and from what enters at the cuts. The *outside* step computes what
enters. Both read rows that the forward loop kept, and tangents, as the variables of a
`Derivative`. The *reverse* step is the transpose of the inside step. Its carry holds
the cotangents of the carry, and the summed cotangents of the weights whose tangents
flow in the loop. Its outputs are the cotangents of what entered at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Var

from scanrnn.planner.derivative import tangent
from scanrnn.planner.derivative.gradient import Derivative
from scanrnn.planner.ir import ops
from scanrnn.planner.ir.graph import Env, Graph, Values, struct, variables_like
from scanrnn.planner.ir.retrace import graph_of
from scanrnn.planner.passes.wide_sums import in_wide_sums, rounded, wide_type


class Step(NamedTuple):
    """A step of a derivative.

    Attributes:
      graph: the step.
      consts: its constants, by variable; they are the last weights of the graph.
      active: the variables whose tangents come in. For an inside step, the order is
        carries, weights, cuts, time inputs.
      ys: for each output of the graph, the variable whose tangent (or, in reverse,
        cotangent) it is.
    """

    graph: Graph
    consts: Values
    active: tuple[Var, ...]
    ys: tuple[Var, ...]

    @property
    def carry(self) -> tuple[Var, ...]:
        """The variables whose tangents are carried."""
        return self.active[: len(self.graph.carry)]


class Steps:
    """The steps of a derivative, each made once.

    Attributes:
      derivative: what the steps compute.
    """

    def __init__(self, derivative: Derivative, made: Mapping[Any, Step] | None = None):
        """Keep the derivative, and steps that were made with it."""
        self.derivative, self._made = derivative, dict(made or {})

    def inside(self, active: frozenset[Var]) -> Step:
        """The step of the tangents in the loop, if the variables `active` have some.

        Carries that depend on them then have tangents, too.
        """
        active = _with_reached(self.derivative.graph, active)
        return self._once(("inside", active), _inside, active)

    def outside(self, active: frozenset[Var]) -> Step:
        """The step of what enters at the cuts, if these inputs have tangents."""
        return self._once(("outside", active), _outside, active)

    def reverse(self, inside: Step, ys: tuple[Var, ...]) -> Step:
        """The transpose of an inside step, given the cotangents of some of its ys.

        Its ys are the cotangents of the active variables that are neither carries nor
        weights.
        """
        return self._once(("reverse", inside.active, ys), _reverse, inside, ys)

    def _once(self, key: tuple, make: Callable[..., Step], *args) -> Step:
        if key not in self._made:
            self._made[key] = make(self.derivative, *args)
        return self._made[key]


def _with_reached(loop: Graph, active: frozenset[Var]) -> frozenset[Var]:
    """The variables `active`, and the carries that depend on them."""
    carries = [(v, out) for v, out in zip(loop.carry, loop.carry_out, strict=True)]
    while True:
        found = set(active)
        for eqn in loop.eqns:
            nonzero = [not ops.is_literal(a) and a in found for a in eqn.invars]
            if tangent.moves(eqn, nonzero):
                found.update(filter(ops.is_inexact, eqn.outvars))
        reached = {v for v, out in carries if not ops.is_literal(out) and out in found}
        if active.issuperset(reached):
            return active
        active |= reached


def _inside(derivative: Derivative, active: frozenset[Var]) -> Step:
    loop, d = derivative.graph, derivative.tangents
    groups = loop.carry, loop.weights, derivative.cuts, loop.xs
    carry, *others = ([v for v in group if v in active] for group in groups)
    d_carry, d_weights, d_cuts, d_xs = ([d[v] for v in g] for g in (carry, *others))
    ys: list[Any] = []
    reached: set[Var] = set()

    def step(values):
        found = derivative.propagate(values)
        after = zip(loop.carry, loop.carry_out, strict=True)
        ends = {v: None if ops.is_literal(out) else found.get(out) for v, out in after}
        reached.update(v for v, t in ends.items() if t is not None)
        ys[:] = [v for v in loop.ys if found.get(v) is not None]
        zeros = {v: jnp.zeros_like(values[d[v]]) for v in carry if ends[v] is None}
        return [*(zeros.get(v, ends[v]) for v in carry), *(found[v] for v in ys)]

    weights = (*loop.weights, *derivative.transposed.values(), *d_weights)
    xs = (*derivative.rows(derivative.read_inside), *d_cuts, *d_xs)
    graph, consts = graph_of(step, weights, d_carry, xs)
    if not active.issuperset(reached):
        return _inside(derivative, _with_reached(loop, active | reached))
    names = tuple(v for group in (carry, *others) for v in group)
    return Step(graph, consts, names, tuple(ys))


def _outside(derivative: Derivative, active: frozenset[Var]) -> Step:
    loop, d = derivative.graph, derivative.tangents
    cuts: list[Var] = []
    weights, xs = ([v for v in g if v in active] for g in (loop.weights, loop.xs))

    def step(values):
        found = derivative.propagate(values, outside=True)
        cuts[:] = [v for v in derivative.cuts if found.get(v) is not None]
        return [found[v] for v in cuts]

    graph, consts = graph_of(
        step,
        (*loop.weights, *(d[v] for v in weights)),
        (),
        (*derivative.rows(derivative.read_outside), *(d[v] for v in xs)),
    )
    return Step(graph, consts, (*weights, *xs), tuple(cuts))


def _reverse(derivative: Derivative, inside: Step, ys: tuple[Var, ...]) -> Step:
    graph, d = inside.graph, derivative.tangents
    tangents = [d[v] for v in inside.active]
    summed = [v for v in inside.active if v in derivative.graph.weights]
    n, m = len(inside.carry), len(inside.carry) + len(summed)
    sums = variables_like(wide_type(struct(v)) for v in summed)
    outs = dict(zip(inside.ys, graph.ys, strict=True))
    cts = [derivative.cotangents[v] for v in ys]

    def pull(values):
        def push(*active):
            env = Env(graph.eqns, values | dict(zip(tangents, active, strict=True)))
            return env.read_all([*graph.carry_out, *(outs[v] for v in ys)])

        given = [values[v] for v in (*graph.carry, *cts)]
        found = jax.linear_transpose(push, *map(struct, tangents))(given)
        before = [values[v] for v in sums]
        more = map(lax.add, before, map(rounded, found[n:m], before))
        return [*found[:n], *more, *found[m:]]

    active = {*tangents}
    weights = [v for v in graph.weights if v not in active]
    xs = [*(v for v in graph.xs if v not in active), *cts]
    carry = (*graph.carry, *sums)
    made, consts = graph_of(in_wide_sums(pull, graph), weights, carry, xs)
    consts = {**inside.consts, **consts}
    return Step(made, consts, inside.active, inside.active[m:])
