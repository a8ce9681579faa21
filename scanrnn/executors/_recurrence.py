"""What all parts of an executor know about the loop that they run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from jax import lax
from jax.extend.core import JaxprEqn, Var

from scanrnn.executors._inplace import pair_up
from scanrnn.planner import ops
from scanrnn.planner.gradient import Derivative, derive
from scanrnn.planner.graph import Graph, variables
from scanrnn.planner.layout import PLAIN, Layout, lay_out


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop graph with its run-time choices; the graph's `ys` are stacked.

    `spare` are time inputs that nothing reads after the loop; `over` says which of
    them the ys are written over, or is None where that is still to be decided.
    """

    graph: Graph
    length: Any
    reverse: bool
    unroll: int | bool
    residuals: str
    defer: bool
    laid_out: bool
    spare: frozenset[Var]
    over: Mapping[Var, Var] | None = None

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

    @property
    def in_place(self) -> bool:
        """Whether stacked arrays are written over those that are read no more.

        Not where JAX differentiates the loop, for the same reason; on one device,
        where a step's row of an array is a row in memory; and one step per trip:
        of two, the second would write before all reads of the first were done.
        """
        return (
            self.laid_out
            and self.unroll is not True
            and self.unroll == 1
            and self.residuals != "everything"
            and isinstance(self.length, int)
            and self.length > 1
            and ops.on_one_device(map(ops.aval, self.graph.inputs))
        )

    @functools.cached_property
    def overwritten(self) -> Mapping[Var, Var]:
        """For ys of the loop, the time inputs that they are written over."""
        if not self.in_place or self.over is not None:
            return self.over or {}
        spare = [v for v in self.graph.xs if v in self.spare]
        return pair_up(variables(self.graph.ys), spare)

    def stacking(self, ys: Iterable[Var], eqns: Iterable[JaxprEqn]) -> Loop:
        """This loop, which stacks more, for a tangent that will read some inputs.

        What it stacked already it writes where it did: under `vmap` a function and
        its derivative rule must make each output in the same way.
        """
        graph, rules = self.graph, self.derivative
        taken = {*self.overwritten.values(), *rules.read_inside, *rules.read_outside}
        spare = [v for v in graph.xs if v in self.spare and v not in taken]
        more = pair_up(ys, spare) if self.in_place else {}
        eqns = (*rules.differentiated, *eqns)
        graph = dataclasses.replace(graph, ys=(*graph.ys, *ys), eqns=eqns)
        return dataclasses.replace(
            self, graph=graph, spare=frozenset(spare), over={**self.overwritten, **more}
        )

    def scan(self, body, init, xs):
        """`lax.scan` with this loop's length, direction and unrolling."""
        return self._scan(body, init, xs, self.reverse)

    def scan_back(self, body, init, xs):
        """`lax.scan` from the last step of this loop to the first."""
        return self._scan(body, init, xs, not self.reverse)

    def _scan(self, body, init, xs, reverse):
        # A symbolic length cannot be given, only found in the shapes of xs.
        length = None if jax.tree.leaves(xs) else self.length
        return lax.scan(body, init, xs, length, reverse=reverse, unroll=self.unroll)

    def rematerialised(self, f):
        """Keep only the inputs of `f` for its transpose, unless all is saved."""
        if self.residuals == "everything":
            return f
        return jax.checkpoint(f, prevent_cse=False, policy=ops.keep_inputs)


def named(names: Iterable[Var], values: Iterable) -> dict[Var, Any]:
    """Values by variable."""
    return dict(zip(names, values, strict=True))


def varying(arrays: Iterable) -> bool:
    """Whether devices hold different values of any of these, under `shard_map`."""
    return any(ops.is_varying(jax.typeof(a)) for a in arrays)


def zeros_of(rules: Derivative, known: Mapping[Var, Any]) -> dict[Var, Any]:
    """Zeros for what is not known, as no tangent depends on it.

    The rules may evaluate it all the same, as `jax.jvp` does.
    """
    asked = (*rules.loop.carry, *rules.loop.xs, *rules.saved)
    missing = {v: ops.aval(v) for v in asked if v not in known}
    return {v: ops.zeros(a) for v, a in missing.items()}


def names_of(groups: Iterable[Iterable[Var]]) -> tuple[tuple[Var, ...], ...]:
    """The names in groups of values by variable."""
    return tuple(map(tuple, groups))


def flat(groups: Iterable[Mapping[Var, Any]]) -> list:
    """The values of all groups, in order."""
    return [value for group in groups for value in group.values()]


def grouped(names: Iterable[Iterable[Var]], values: Iterable) -> list[dict[Var, Any]]:
    """The groups whose values, in order, these are."""
    found = iter(values)
    return [{v: next(found) for v in group} for group in names]


def values(known: Mapping[Var, Any]) -> list:
    """The values alone, in order."""
    return list(known.values())
